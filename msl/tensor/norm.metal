// sqrt(Σ x²)
template <typename P> static inline float load(constant P& params, float v) { return v * v; }
template <typename P> static inline float finish(constant P& params, float squares) { return sqrt(squares); }
