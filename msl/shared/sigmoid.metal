// 1 / (1 + e^-x), by an exponential that cannot overflow.
static inline float sigmoid(float x) {
    const float e = exp_negative(-fabs(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}
