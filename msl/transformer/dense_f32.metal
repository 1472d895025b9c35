// The four elements of 16 bytes of a dense matrix in f32; q is 0.
#define QUADS 1u
static inline float4 unpack4(uint4 v, uint) { return as_type<float4>(v); }
