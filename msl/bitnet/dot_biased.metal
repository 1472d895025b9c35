// As dot_f16.metal, for devices that flush subnormal f16: 0x6400 | field is the half 1024 + code·4^f. wgsl/bitnet/dot_biased.wgsl says more.
typedef int Acc;

#define BIAS 0x64006400u

static inline float dot_pair(uint field, uint x, float acc) {
    const half2 w = as_type<half2>(field | BIAS);
    const half2 a = as_type<half2>(x);
    return fma(float(w.y), float(a.y), fma(float(w.x), float(a.x), acc));
}

// x0 and x1 are the activations' two planes.
static inline int dot_word(uint word, uint4 x0, uint4 x1, int acc) {
    const uint high = word >> 8;
    float s = dot_pair(word & 0x00030003u, x0.x, 0.0f);
    s = dot_pair(word & 0x000c000cu, x0.y, s);
    s = dot_pair(word & 0x00300030u, x0.z, s);
    s = dot_pair(word & 0x00c000c0u, x0.w, s);
    s = dot_pair(high & 0x00030003u, x1.x, s);
    s = dot_pair(high & 0x000c000cu, x1.y, s);
    s = dot_pair(high & 0x00300030u, x1.z, s);
    return acc + int(dot_pair(high & 0x00c000c0u, x1.w, s));
}

// Codes are value + 1, so the sum of the activations is subtracted, and the bias's share.
static inline float finish(int sum, int2 x_sum) { return float(sum - x_sum.x - x_sum.y); }
