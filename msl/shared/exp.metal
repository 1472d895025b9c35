// e^x for x <= 0, within 2 units in the last place; within 2 + |x| of them where the compiler reorders sums. wgsl/shared/exp.wgsl says how.
static inline float exp_negative(float x) {
    const float n = rint(max(x, -87.0f) * 1.442695041f);
    const float r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, x));
    float p = fma(1.0f / 5040.0f, r, 1.0f / 720.0f);
    p = fma(p, r, 1.0f / 120.0f);
    p = fma(p, r, 1.0f / 24.0f);
    p = fma(p, r, 1.0f / 6.0f);
    p = fma(p, r, 0.5f);
    p = fma(p, r, 1.0f);
    p = fma(p, r, 1.0f);
    return x < -87.0f ? 0.0f : p * as_type<float>(uint(127 + int(n)) << 23);
}
