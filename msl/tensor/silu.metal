// x·σ(x), and dy·σ(x)·(1 + x·(1 - σ(x)))
static inline float forward(float x) { return x * sigmoid(x); }

static inline float backward(float x, float dy) {
    const float s = sigmoid(x);
    return dy * (s * fma(x, 1.0f - s, 1.0f));
}
