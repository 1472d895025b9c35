// x / y, correctly rounded, whatever the compiler makes of the division. wgsl/shared/exact.wgsl says how.

// Moves q by up to two units towards the quotient. Where that crosses a power of two, a second call is needed.
static inline uint nearer(uint q, uint x, uint y) {
    const uint significand_x = (x & 0x7fffffu) | 0x800000u;
    const uint significand_y = (y & 0x7fffffu) | 0x800000u;
    const uint significand_q = (q & 0x7fffffu) | 0x800000u;
    const uint shift = 150u + (x >> 23) - (y >> 23) - (q >> 23);
    const int remainder = as_type<int>((significand_x << (shift & 31u)) - significand_q * significand_y);
    // Below a power of two, floats are twice as dense.
    const int below = (q & 0x7fffffu) == 0u ? 4 : 2;
    const int divisor = int(significand_y);
    const uint up = uint(2 * remainder > divisor) + uint(2 * remainder > 3 * divisor);
    const uint down = uint(below * remainder < -divisor) + uint(below * remainder < -3 * divisor);
    return q + up - down;
}

// Are these the bits of a positive normal float?
static inline bool is_normal(uint bits) { return bits >= 0x00800000u && bits < 0x7f800000u; }

// Where x, y or the quotient is zero, subnormal, infinite or NaN, the result is the device's own.
static inline float exact_quotient(float x, float y) {
    const uint q = as_type<uint>(x / y);
    const uint bits_x = as_type<uint>(x) & 0x7fffffffu;
    const uint bits_y = as_type<uint>(y) & 0x7fffffffu;
    uint bits_q = q & 0x7fffffffu;
    if (!is_normal(bits_x) || !is_normal(bits_y) || !is_normal(bits_q)) return as_type<float>(q);
    bits_q = nearer(nearer(bits_q, bits_x, bits_y), bits_x, bits_y);
    return as_type<float>(bits_q | (q & 0x80000000u));
}
