// (largest, Σ e^(x - largest)) of a row; see wgsl/shared/softmax.wgsl.
#define NOTHING float2(-3.4028234e38f, 0.0f)

static inline float2 combine(float2 a, float2 b) {
    const float scale = exp_negative(-fabs(a.x - b.x));
    return a.x >= b.x ? float2(a.x, a.y + b.y * scale) : float2(b.x, a.y * scale + b.y);
}
