// ln x for positive normal x; wgsl/shared/log.wgsl says how.
static inline float log_positive(float x) {
    const uint bits = as_type<uint>(x);
    const int e = (int(bits) - 0x3f3504f3) >> 23;
    const float m = as_type<float>(bits - (uint(e) << 23));
    const float s = (m - 1.0f) / (m + 1.0f);
    const float z = s * s;
    float p = fma(1.0f / 9.0f, z, 1.0f / 7.0f);
    p = fma(p, z, 1.0f / 5.0f);
    p = fma(p, z, 1.0f / 3.0f);
    const float ln_m = fma(2.0f * s * z, p, 2.0f * s);
    return fma(float(e), 0.693145752f, fma(float(e), 1.42860677e-6f, ln_m));
}
