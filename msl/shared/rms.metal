// 1 / sqrt(mean(v²) + eps) of a row, bit-identical on every device, since squares are added as integers. wgsl/shared/rms.wgsl says why and how.

// From the bits of the row's largest magnitude: all |v| < 2^(exponent - 126).
static inline uint row_exponent(uint largest) { return clamp(largest >> 23, 15u, 254u); }

// What scales numbers to |u| < 2^15.
static inline float square_scale(uint exponent) { return as_type<float>((268u - exponent) << 23); }

static inline uint square(float u) { return uint(rint(u * u)); }

// An integer as the sum of two limbs: x·2^16 + y. The four squares of a quad fit into 32 bits together.
static inline uint2 limbs(uint v) { return uint2(v >> 16, v & 0xffffu); }

static inline uint2 quad_limbs(float4 u) { return limbs((square(u.x) + square(u.y)) + (square(u.z) + square(u.w))); }

// x·2^16 + y, rounded to 24 significant bits.
static inline float from_limbs(uint2 sums) {
    const uint high = sums.x + (sums.y >> 16);
    const uint low = sums.y & 0xffffu;
    const uint shift = clz(high) & 31u;
    // The 32 bits from the highest one that is set.
    const uint top = (high << shift) | ((low << 15) >> (31u - shift));
    const float rounded = float((top >> 8) + ((top >> 7) & 1u)) * as_type<float>((151u - shift) << 23);
    return high != 0u ? rounded : float(low);
}

// 1 / sqrt(v); the quotient of a normal number's root is one too.
static inline float exact_inverse_sqrt(float v) {
    return is_normal(as_type<uint>(v)) ? normal_quotient(1.0f, normal_sqrt(v)) : exact_quotient(1.0f, sqrt(v));
}

// From the limbs of the sum of squares; NaN for a row with an infinity or a NaN.
static inline float inverse_rms(uint largest, uint2 sums, uint features, float eps) {
    const float total = from_limbs(sums);
    // This undoes the scale, by 2^(exponent - 141) twice, since its square may not be a float.
    const float back = as_type<float>((row_exponent(largest) - 14u) << 23);
    const float mean = (total > 0.0f ? normal_quotient(total, float(features)) : 0.0f) * back * back;
    const float inverse = exact_inverse_sqrt(mean + eps);
    return as_type<float>(largest >= 0x7f800000u ? 0x7fc00000u : as_type<uint>(inverse));
}
