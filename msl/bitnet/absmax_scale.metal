// The scale levels / max(largest, 1e-5); see wgsl/bitnet/absmax_scale.wgsl.
static inline float absmax_scale(float largest, float levels) {
    const float t = max(largest, 1e-5f);
    // 2^126 and 2^-32.
    const float shrink = t >= 8.507059173023462e37f ? 2.3283064365386963e-10f : 1.0f;
    return normal_quotient(1.0f, t * shrink) * levels * shrink;
}
