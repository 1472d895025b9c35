// The largest of (x & mask) ^ flip, taken back: max, min or absmax; see wgsl/tensor/max.wgsl.
static inline float identity() { return from_key(0u); }
static inline float combine(float a, float b) { return to_key(a) >= to_key(b) ? a : b; }
template <typename P> static inline float load(constant P& params, float v) { return as_type<float>((as_type<uint>(v) & params.mask) ^ params.flip); }
template <typename P> static inline float finish(constant P& params, float v) { return as_type<float>(as_type<uint>(v) ^ params.flip); }
