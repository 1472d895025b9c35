// For shared/lanes: the largest number and the smallest with its sign changed; see wgsl/shared/extremes.wgsl.
typedef uint2 Acc;
static inline uint2 identity() { return uint2(to_key(0.0f)); }
static inline uint2 load(float v) { return uint2(to_key(v), to_key(-v)); }
static inline uint2 combine(uint2 a, uint2 b) { return uint2(max(a.x, b.x), max(a.y, b.y)); }
