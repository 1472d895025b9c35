// Sixteen bytes of a dense matrix, four elements at a time: here four floats.
#define QUADS 1u
static inline float4 quad(uint4 v, uint) { return as_type<float4>(v); }
