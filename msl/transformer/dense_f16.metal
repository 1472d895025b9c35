// The q-th four elements of 16 bytes of a dense matrix in f16: eight numbers.
#define QUADS 2u
static inline float4 unpack4(uint4 v, uint q) {
    const half2 low = as_type<half2>(q == 1u ? v.z : v.x);
    const half2 high = as_type<half2>(q == 1u ? v.w : v.y);
    return float4(float(low.x), float(low.y), float(high.x), float(high.y));
}
