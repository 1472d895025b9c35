// 1 / sqrt(mean(v²) + eps) of a row, the same bits on every device, since squares are added as integers. wgsl/shared/rms.wgsl says why and how.

// The two limbs of a float in [0, 16), given as its bits.
static inline uint2 to_limbs(uint bits, uint limb) {
    const uint significand = bits >= 0x800000u ? (bits & 0x7fffffu) | 0x800000u : 0u;
    const int shift = 154 - int(limb) - int(bits >> 23);
    // Only in a row that is not finite would a shift to the left be of 32 bits or more.
    if (shift <= 0) return uint2(significand << uint(min(-shift, 31)), 0u);
    const uint rest = significand & ((1u << uint(min(shift, 31))) - 1u);
    const uint low = shift <= int(limb) ? rest << uint(int(limb) - shift) : rest >> uint(min(shift - int(limb), 31));
    return uint2(significand >> uint(min(shift, 31)), low);
}

// high·2^limb + low, rounded to 24 significant bits: an integer m in [2^23, 2^24] and an exponent e, for m·2^e.
static inline int2 from_limbs(uint2 sums, uint limb) {
    const uint high = sums.x + (sums.y >> limb);
    const uint low = sums.y & ((1u << limb) - 1u);
    const uint upper = high >> (32u - limb);
    const uint lower = (high << limb) | low;
    if (upper == 0u && lower == 0u) return int2(0);
    // The 32 bits from the highest one that is set.
    const uint first = upper != 0u ? 63u - clz(upper) : 31u - clz(lower);
    uint top = upper;
    if (first < 32u) top = lower << (31u - first);
    else if (first < 63u) top = (upper << (63u - first)) | (lower >> (first - 31u));
    return int2(int((top >> 8) + ((top >> 7) & 1u)), int(first) - 23);
}

// Moves r by one unit towards the square root of x.
static inline uint nearer_root(uint r, uint x) {
    const uint significand_x = (x & 0x7fffffu) | 0x800000u;
    const uint significand_r = (r & 0x7fffffu) | 0x800000u;
    const uint shift = (x >> 23) + 150u - 2u * (r >> 23);
    const int remainder = as_type<int>((significand_x << (shift & 31u)) - significand_r * significand_r);
    const int below = (r & 0x7fffffu) == 0u ? 2 : 1;
    return r + uint(remainder > int(significand_r)) - uint(below * remainder <= -int(significand_r));
}

static inline float exact_sqrt(float x) {
    const uint r = as_type<uint>(sqrt(x));
    const uint bits = as_type<uint>(x);
    if (!is_normal(bits) || !is_normal(r)) return as_type<float>(r);
    return as_type<float>(nearer_root(nearer_root(r, bits), bits));
}

// NaN for a row with an infinity or a NaN. `element(i)` is the i-th number of the row. All threads of the threadgroup must call this together.
template <typename Element>
static float exact_inverse_rms(Element element, uint features, float eps, threadgroup uint* scratch, Ids ids) {
    uint bits = 0;
    for (uint i = ids.local; i < features; i += THREADS) bits = max(bits, as_type<uint>(element(i)) & 0x7fffffffu);
    bits = group_max_u32(bits, scratch, ids);
    // All |v| < 2^(exponent - 126).
    const uint exponent = clamp(bits >> 23, 1u, 254u);
    const float scale = as_type<float>((255u - exponent) << 23);
    const uint limb = clz(max(features, 1u)) - 1u;
    uint2 sums = uint2(0u);
    for (uint i = ids.local; i < features; i += THREADS) {
        const float u = element(i) * scale;
        sums += to_limbs(as_type<uint>(u * u), limb);
    }
    const int2 total = from_limbs(group_sum2_u32(sums, scratch, ids), limb);
    // This undoes the scale, by 2^(exponent - 128) twice, since its square may not be a float, and gives the limbs their weight, 2^(4 - 2·limb).
    const int power = total.y + 4 - 2 * int(limb);
    const float factor = as_type<float>(uint(127 + max(int(exponent) - 128, -126)) << 23);
    float mean = exact_quotient(float(total.x), float(features)) * as_type<float>(uint(127 + power) << 23);
    mean = mean * factor * factor;
    const float inverse = exact_quotient(1.0f, exact_sqrt(mean + eps));
    return as_type<float>(bits >= 0x7f800000u ? 0x7fc00000u : as_type<uint>(inverse));
}
