// x / y, correctly rounded on every device that fuses multiply-adds: wgsl/shared/exact.wgsl says why and how.

// Are these the bits of a positive normal float?
bool is_normal(const uint bits) { return bits >= 0x00800000u && bits < 0x7f800000u; }

float significand(const uint bits) { return uintBitsToFloat((bits & 0x7fffffu) | 0x3f800000u); }

// Where x, y or the quotient is zero, subnormal, infinite or NaN, the result is the device's own.
float exact_quotient(const float x, const float y) {
    uint bits_x = floatBitsToUint(x);
    uint bits_y = floatBitsToUint(y);
    float a = significand(bits_x);
    float b = significand(bits_y);
    float inverse = 1.0 / b;
    float near = a * inverse;
    // Less than a unit off, in (1/2, 2).
    float q = fma(fma(-b, near, a), inverse, near);
    float remainder = fma(-b, q, a);
    // Half a unit of q is 2^-24 from 1 on, and half of that below. A quotient of two floats is never halfway between two floats.
    bool up = remainder > b * (q >= 1.0 ? 5.9604644775390625e-8 : 2.98023223876953125e-8);
    bool down = remainder < -b * (q > 1.0 ? 5.9604644775390625e-8 : 2.98023223876953125e-8);
    uint bits = floatBitsToUint(q) + uint(up) - uint(down) + (bits_x & 0x7f800000u) - (bits_y & 0x7f800000u);
    if (!is_normal(bits_x & 0x7fffffffu) || !is_normal(bits_y & 0x7fffffffu) || !is_normal(bits)) return x / y;
    return uintBitsToFloat(bits | ((bits_x ^ bits_y) & 0x80000000u));
}

// Is v positive, and so far from subnormal and infinite that a product of two such numbers and an integer, and its quotient by a third, are too? Not
// where all bits of its significand are ones: reciprocal() is a unit off there. No scale of the quantizer, 127 · (1 / t), is one:
// tried for all significands.
bool is_usual(const float v) {
    return v >= 9.094947017729282e-13 && v <= 1.099511627776e12 && (floatBitsToUint(v) & 0x7fffffu) != 0x7fffffu;
}

// 1 / y, correctly rounded, where y is usual and the device's own is up to three units off: checked for all significands.
float reciprocal(const float y) {
    float r = 1.0 / y;
    r = fma(fma(-r, y, 1.0), r, r);
    return fma(fma(-r, y, 1.0), r, r);
}

// x / y, correctly rounded, where y is usual and x is 0 or as large as a usual number. After one step the quotient is less than a unit off and its
// remainder exact; so the next step rounds correctly (Markstein).
float quotient_by(const float x, const float y, const float inverse) {
    float near = x * inverse;
    float q = fma(fma(-near, y, x), inverse, near);
    return fma(fma(-q, y, x), inverse, q);
}

vec2 quotient_by(const vec2 x, const float y, const float inverse) { return vec2(quotient_by(x.x, y, inverse), quotient_by(x.y, y, inverse)); }
