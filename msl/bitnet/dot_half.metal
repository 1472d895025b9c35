// Sixteen codes times sixteen activations in the half layout: a masked field is a subnormal half; see wgsl/bitnet/dot_half.wgsl.
typedef float Acc;

static inline float dot_pair(uint field, uint x, float acc) {
    const half2 w = as_type<half2>(field);
    const half2 a = as_type<half2>(x);
    return fma(float(w.y), float(a.y), fma(float(w.x), float(a.x), acc));
}

static inline float dot_plane(uint fields, uint4 x, float acc) {
    float s = dot_pair(fields & 0x00030003u, x.x, acc);
    s = dot_pair(fields & 0x000c000cu, x.y, s);
    s = dot_pair(fields & 0x00300030u, x.z, s);
    return dot_pair(fields & 0x00c000c0u, x.w, s);
}

static inline float finish(float sum, int2 x_sum) { return sum * 16777216.0f - float(x_sum.x); }
