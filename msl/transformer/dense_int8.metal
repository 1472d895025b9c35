// The q-th four elements of 16 bytes of a dense matrix in int8: sixteen integers, which the row's scale multiplies.
#define QUADS 4u
static inline float4 unpack4(uint4 v, uint q) { return float4(as_type<char4>(v[q])); }
