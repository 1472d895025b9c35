// The share of the normal distribution below x. wgsl/shared/normal.wgsl says how.
static inline float normal_below(float x) {
    const float t = 1.0f / fma(fabs(x), 0.353553391f, 1.0f);
    float p = fma(-0.0585486367f, t, 0.282312334f);
    p = fma(p, t, -0.483111411f);
    p = fma(p, t, 0.274094313f);
    p = fma(p, t, -0.0243820865f);
    p = fma(p, t, 0.201945096f);
    p = fma(p, t, 0.243240625f);
    p = fma(p, t, 0.282362938f);
    p = fma(p, t, 0.282086790f);
    const float q = 0.5f * t * p * exp_negative(-0.5f * x * x);
    return x < 0.0f ? q : 1.0f - q;
}
