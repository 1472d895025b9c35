// As dot_half.metal, where subnormal halves are flushed: 0x6400 | field is 1024 + field; see wgsl/bitnet/dot_biased.wgsl.
typedef int Acc;

static inline float dot_pair(uint field, uint x, float acc) {
    const half2 w = as_type<half2>(field | 0x64006400u);
    const half2 a = as_type<half2>(x);
    return fma(float(w.y), float(a.y), fma(float(w.x), float(a.x), acc));
}

static inline int dot_word(uint word, uint4 even, uint4 odd, int acc) {
    const uint high = word >> 8;
    float s = dot_pair(word & 0x00030003u, even.x, 0.0f);
    s = dot_pair(word & 0x000c000cu, even.y, s);
    s = dot_pair(word & 0x00300030u, even.z, s);
    s = dot_pair(word & 0x00c000c0u, even.w, s);
    s = dot_pair(high & 0x00030003u, odd.x, s);
    s = dot_pair(high & 0x000c000cu, odd.y, s);
    s = dot_pair(high & 0x00300030u, odd.z, s);
    return acc + int(dot_pair(high & 0x00c000c0u, odd.w, s));
}

static inline float finish(int sum, int2 x_sum) { return float(sum - x_sum.x - x_sum.y); }
