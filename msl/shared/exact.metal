// x / y and the square root, correctly rounded, whatever the compiler makes of a division: wgsl/shared/exact.wgsl says why and how. fma() is fused in Metal.

// Are these the bits of a positive normal float?
static inline bool is_normal(uint bits) { return bits >= 0x00800000u && bits < 0x7f800000u; }

static inline float significand(uint bits) { return as_type<float>((bits & 0x7fffffu) | 0x3f800000u); }

// The bits of |x / y|, where x, y and the quotient are normal numbers.
static inline uint quotient_bits(float x, float y) {
    const uint bits_x = as_type<uint>(x), bits_y = as_type<uint>(y);
    const float a = significand(bits_x), b = significand(bits_y);
    const float inverse = 1.0f / b;
    const float near = a * inverse;
    // Less than a unit off, in (1/2, 2).
    const float q = fma(fma(-b, near, a), inverse, near);
    const float remainder = fma(-b, q, a);
    // Half a unit of q is 2^-24 from 1 on, and half of that below. A quotient of two floats is never halfway between two floats.
    const bool up = remainder > b * (q >= 1.0f ? 5.9604644775390625e-8f : 2.98023223876953125e-8f);
    const bool down = remainder < -b * (q > 1.0f ? 5.9604644775390625e-8f : 2.98023223876953125e-8f);
    return as_type<uint>(q) + uint(up) - uint(down) + (bits_x & 0x7f800000u) - (bits_y & 0x7f800000u);
}

// Of positive normal numbers with a normal quotient: without a branch for others.
static inline float normal_quotient(float x, float y) { return as_type<float>(quotient_bits(x, y)); }

// Where x, y or the quotient is zero, subnormal, infinite or NaN, the result is the device's own.
static inline float exact_quotient(float x, float y) {
    const uint bits_x = as_type<uint>(x), bits_y = as_type<uint>(y), bits = quotient_bits(x, y);
    if (!is_normal(bits_x & 0x7fffffffu) || !is_normal(bits_y & 0x7fffffffu) || !is_normal(bits)) return x / y;
    return as_type<float>(bits | ((bits_x ^ bits_y) & 0x80000000u));
}

// Of a positive normal number.
static inline float normal_sqrt(float x) {
    const uint bits = as_type<uint>(x);
    // m in [1, 4), for m·2^(2·e).
    const uint odd = (bits >> 23) & 1u;
    const float m = as_type<float>((bits & 0x7fffffu) | (odd == 1u ? 0x3f800000u : 0x40000000u));
    const float inverse = rsqrt(m);
    const float near = m * inverse;
    const float halved = 0.5f * inverse;
    const float error = fma(-near, halved, 0.5f);
    const float r = fma(near, error, near);
    const uint root = as_type<uint>(fma(fma(-r, r, m), fma(halved, error, halved), r));
    return as_type<float>(root + ((((bits >> 23) + odd) >> 1) << 23) - 0x20000000u);
}

// Of zeros, subnormal and negative numbers, infinity and NaN, the device's own.
static inline float exact_sqrt(float x) { return is_normal(as_type<uint>(x)) ? normal_sqrt(x) : sqrt(x); }
