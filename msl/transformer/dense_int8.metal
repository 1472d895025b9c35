// Sixteen bytes of a dense matrix, four elements at a time: sixteen bytes, to be scaled by the row.
#define QUADS 4u
static inline float4 quad(uint4 v, uint q) { return float4(as_type<char4>(v[q])); }
