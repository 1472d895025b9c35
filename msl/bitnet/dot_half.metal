// Sixteen codes times sixteen activations in the half layout: a masked field is a subnormal half; see wgsl/bitnet/dot_half.wgsl.
typedef float Acc;

static inline float dot_pair(uint field, uint x, float acc) {
    const half2 w = as_type<half2>(field);
    const half2 a = as_type<half2>(x);
    return fma(float(w.y), float(a.y), fma(float(w.x), float(a.x), acc));
}

static inline float dot_word(uint word, uint4 even, uint4 odd, float acc) {
    const uint high = word >> 8;
    float s = dot_pair(word & 0x00030003u, even.x, acc);
    s = dot_pair(word & 0x000c000cu, even.y, s);
    s = dot_pair(word & 0x00300030u, even.z, s);
    s = dot_pair(word & 0x00c000c0u, even.w, s);
    s = dot_pair(high & 0x00030003u, odd.x, s);
    s = dot_pair(high & 0x000c000cu, odd.y, s);
    s = dot_pair(high & 0x00300030u, odd.z, s);
    return dot_pair(high & 0x00c000c0u, odd.w, s);
}

static inline float finish(float sum, int2 x_sum) { return sum * 16777216.0f - float(x_sum.x); }
