// x / y, correctly rounded, whatever the compiler makes of a division; see wgsl/shared/exact.wgsl for the reasoning.
static inline uint nearer(uint q, uint x, uint y) {
    const uint significand_x = (x & 0x7fffffu) | 0x800000u;
    const uint significand_y = (y & 0x7fffffu) | 0x800000u;
    const uint significand_q = (q & 0x7fffffu) | 0x800000u;
    const uint shift = 150u + (x >> 23) - (y >> 23) - (q >> 23);
    const int remainder = as_type<int>((significand_x << (shift & 31u)) - significand_q * significand_y);
    // Below a power of two the floats lie twice as dense.
    const int below = (q & 0x7fffffu) == 0u ? 4 : 2;
    const int y1 = int(significand_y);
    const uint up = uint(2 * remainder > y1) + uint(2 * remainder > 3 * y1);
    const uint down = uint(below * remainder < -y1) + uint(below * remainder < -3 * y1);
    return q + up - down;
}

static inline bool is_normal_bits(uint bits) { return bits >= 0x00800000u && bits < 0x7f800000u; }

static inline float exact_quotient(float x, float y) {
    const uint q = as_type<uint>(x / y);
    const uint bits_x = as_type<uint>(x) & 0x7fffffffu;
    const uint bits_y = as_type<uint>(y) & 0x7fffffffu;
    uint bits_q = q & 0x7fffffffu;
    if (!is_normal_bits(bits_x) || !is_normal_bits(bits_y) || !is_normal_bits(bits_q)) return as_type<float>(q);
    bits_q = nearer(nearer(bits_q, bits_x, bits_y), bits_x, bits_y);
    return as_type<float>(bits_q | (q & 0x80000000u));
}
