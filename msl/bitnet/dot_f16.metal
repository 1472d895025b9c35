// Sixteen codes times sixteen activations in the f16 layout, where a masked field is a subnormal half. wgsl/bitnet/dot_f16.wgsl says more.
typedef float Acc;

static inline float dot_pair(uint field, uint x, float acc) {
    const half2 w = as_type<half2>(field);
    const half2 a = as_type<half2>(x);
    return fma(float(w.y), float(a.y), fma(float(w.x), float(a.x), acc));
}

// x0 and x1 are the activations' two planes.
static inline float dot_word(uint word, uint4 x0, uint4 x1, float acc) {
    const uint high = word >> 8;
    float s = dot_pair(word & 0x00030003u, x0.x, acc);
    s = dot_pair(word & 0x000c000cu, x0.y, s);
    s = dot_pair(word & 0x00300030u, x0.z, s);
    s = dot_pair(word & 0x00c000c0u, x0.w, s);
    s = dot_pair(high & 0x00030003u, x1.x, s);
    s = dot_pair(high & 0x000c000cu, x1.y, s);
    s = dot_pair(high & 0x00300030u, x1.z, s);
    return dot_pair(high & 0x00c000c0u, x1.w, s);
}

// Codes are value + 1, so the sum of the activations is subtracted.
static inline float finish(float sum, int2 x_sum) { return sum * 16777216.0f - float(x_sum.x); }
