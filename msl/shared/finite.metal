// By its bits, for Metal's fast math takes every number to be finite.
static inline bool is_finite(float x) { return (as_type<uint>(x) & 0x7fffffffu) < 0x7f800000u; }
