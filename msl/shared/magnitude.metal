// For shared/lanes: the largest magnitude, by the bits; see wgsl/shared/magnitude.wgsl.
typedef uint Acc;
static inline uint identity() { return 0u; }
static inline uint load(float v) { return as_type<uint>(v) & 0x7fffffffu; }
static inline uint combine(uint a, uint b) { return max(a, b); }
