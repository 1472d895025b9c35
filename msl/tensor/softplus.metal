// ln(1 + e^x): see wgsl/tensor/softplus.wgsl.
static inline float forward(float x) {
    const float e = exp_negative(-fabs(x));
    const float s = e / (2.0f + e);
    const float u = s * s;
    float p = fma(0.232390508f, u, 0.217033148f);
    p = fma(p, u, 0.285925835f);
    p = fma(p, u, 0.399997026f);
    p = fma(p, u, 0.666666687f);
    return max(x, 0.0f) + fma(s * u, p, 2.0f * s);
}
