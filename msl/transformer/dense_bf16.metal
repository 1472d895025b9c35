// The q-th four elements of 16 bytes of a dense matrix in bf16: eight upper halves of floats.
#define QUADS 2u
static inline float4 unpack4(uint4 v, uint q) {
    const uint low = q == 1u ? v.z : v.x;
    const uint high = q == 1u ? v.w : v.y;
    return as_type<float4>(uint4(low << 16, low & 0xffff0000u, high << 16, high & 0xffff0000u));
}
