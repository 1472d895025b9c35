// Pairs of sums, for shared/lanes.
static inline float2 combine(float2 a, float2 b) { return a + b; }
