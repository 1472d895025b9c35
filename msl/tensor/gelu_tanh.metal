// x·σ(2u), u = √(2/π)·(x + 0.044715·x³)
static inline float inner(float x) { return 2.0f * 0.797884561f * x * fma(0.044715f * x, x, 1.0f); }

static inline float forward(float x) { return x * sigmoid(inner(x)); }
