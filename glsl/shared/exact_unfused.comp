// x / y, correctly rounded on devices that do not fuse multiply-adds: wgsl/shared/exact_unfused.wgsl says how.

// Moves q by up to two units towards the quotient. Where that crosses a power of two, a second call is needed.
uint nearer(uint q, uint x, uint y) {
    uint significand_x = (x & 0x7fffffu) | 0x800000u;
    uint significand_y = (y & 0x7fffffu) | 0x800000u;
    uint significand_q = (q & 0x7fffffu) | 0x800000u;
    uint shift = 150u + (x >> 23) - (y >> 23) - (q >> 23);
    int remainder = int((significand_x << (shift & 31u)) - significand_q * significand_y);
    // Below a power of two, floats are twice as dense.
    int below = (q & 0x7fffffu) == 0u ? 4 : 2;
    int divisor = int(significand_y);
    uint up = uint(2 * remainder > divisor) + uint(2 * remainder > 3 * divisor);
    uint down = uint(below * remainder < -divisor) + uint(below * remainder < -3 * divisor);
    return q + up - down;
}

// Are these the bits of a positive normal float?
bool is_normal(uint bits) { return bits >= 0x00800000u && bits < 0x7f800000u; }

// Where x, y or the quotient is zero, subnormal, infinite or NaN, the result is the device's own.
float exact_quotient(float x, float y) {
    uint q = floatBitsToUint(x / y);
    uint bits_x = floatBitsToUint(x) & 0x7fffffffu;
    uint bits_y = floatBitsToUint(y) & 0x7fffffffu;
    uint bits_q = q & 0x7fffffffu;
    if (!is_normal(bits_x) || !is_normal(bits_y) || !is_normal(bits_q)) return uintBitsToFloat(q);
    uint close = nearer(bits_q, bits_x, bits_y);
    if ((close ^ bits_q) >= 0x800000u) close = nearer(close, bits_x, bits_y);
    return uintBitsToFloat(close | (q & 0x80000000u));
}
