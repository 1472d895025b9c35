// Quads of sums, for shared/lanes.
static inline float4 combine(float4 a, float4 b) { return a + b; }
