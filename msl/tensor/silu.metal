// x·σ(x)
static inline float forward(float x) { return x * sigmoid(x); }
