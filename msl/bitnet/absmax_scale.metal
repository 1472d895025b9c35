// The scale levels / max(largest, 1e-5); see wgsl/bitnet/absmax_scale.wgsl.
static inline float absmax_scale(float largest, float levels) {
    const float t = max(largest, 1e-5f);
    const float shrink = t >= 0x1p126f ? 0x1p-32f : 1.0f;
    return exact_quotient(1.0f, t * shrink) * levels * shrink;
}
