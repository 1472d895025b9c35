// Σ x / divisor
template <typename P> static inline float load(constant P& params, float v) { return v; }
template <typename P> static inline float finish(constant P& params, float sum) { return exact_quotient(sum, params.divisor); }
