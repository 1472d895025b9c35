// 1 / sqrt(mean(v²) + eps) of a row, the same bits on every device: activations are quantised after it, and real ones often lie exactly between two
// codes, where the last bit decides. Compensated float sums do not survive compilers that reassociate them, so squares are added as integers. Numbers
// are scaled by a power of two, u = v·2^j with |u| < 4, and u² is cut into two limbs of `limb` bits, so few that their sums over a row fit into 32
// bits. The root and the quotients are correctly rounded.
// A kernel that includes this defines `params.features`, `params.eps`, and `element(token, i)`, the i-th number of the row.

// The two limbs of a float in [0, 16), given as its bits.
fn to_limbs(bits: u32, limb: u32) -> vec2<u32> {
    let significand = select(0u, (bits & 0x7fffffu) | 0x800000u, bits >= 0x800000u);
    let shift = 154 - i32(limb) - i32(bits >> 23u);
    // Only in a row that is not finite would a shift to the left be of 32 bits or more.
    if shift <= 0 { return vec2<u32>(significand << u32(min(-shift, 31)), 0u); }
    let rest = significand & ((1u << u32(min(shift, 31))) - 1u);
    let fits = shift <= i32(limb);
    let low = select(rest >> u32(clamp(shift - i32(limb), 0, 31)), rest << u32(max(i32(limb) - shift, 0)), fits);
    return vec2<u32>(significand >> u32(min(shift, 31)), low);
}

// high·2^limb + low, rounded to 24 significant bits: an integer m in [2^23, 2^24] and an exponent e, for m·2^e.
fn from_limbs(sums: vec2<u32>, limb: u32) -> vec2<i32> {
    let high = sums.x + (sums.y >> limb);
    let low = sums.y & ((1u << limb) - 1u);
    let upper = high >> (32u - limb);
    let lower = (high << limb) | low;
    if upper == 0u && lower == 0u { return vec2<i32>(0); }
    // The 32 bits from the highest one that is set.
    let first = select(firstLeadingBit(lower), 32u + firstLeadingBit(upper), upper != 0u);
    var top = 0u;
    if first == 63u { top = upper; }
    else if first >= 32u { top = (upper << (63u - first)) | (lower >> (first - 31u)); }
    else { top = lower << (31u - first); }
    return vec2<i32>(i32((top >> 8u) + ((top >> 7u) & 1u)), i32(first) - 23);
}

// Moves r by one unit towards the square root of x. As in exact.wgsl, the remainder x·2^s - r² is small, and so exact modulo 2^32; and a root is
// never halfway between two floats.
fn nearer_root(r: u32, x: u32) -> u32 {
    let significand_x = (x & 0x7fffffu) | 0x800000u;
    let significand_r = (r & 0x7fffffu) | 0x800000u;
    let shift = (x >> 23u) + 150u - 2u * (r >> 23u);
    let remainder = bitcast<i32>((significand_x << (shift & 31u)) - significand_r * significand_r);
    let below = select(1, 2, (r & 0x7fffffu) == 0u);
    return r + u32(remainder > i32(significand_r)) - u32(below * remainder <= -i32(significand_r));
}

fn exact_sqrt(x: f32) -> f32 {
    let r = bitcast<u32>(sqrt(x));
    let bits = bitcast<u32>(x);
    if !is_normal(bits) || !is_normal(r) { return bitcast<f32>(r); }
    return bitcast<f32>(nearer_root(nearer_root(r, bits), bits));
}

// NaN for a row with an infinity or a NaN. All threads of the workgroup must call this together.
fn exact_inverse_rms(token: u32, ids: Ids) -> f32 {
    var bits = 0u;
    for (var i = ids.local; i < params.features; i += THREADS) { bits = max(bits, bitcast<u32>(element(token, i)) & 0x7fffffffu); }
    bits = group_max_u32(bits, ids);
    // All |v| < 2^(exponent - 126).
    let exponent = clamp(bits >> 23u, 1u, 254u);
    let scale = bitcast<f32>((255u - exponent) << 23u);
    let limb = 30u - firstLeadingBit(max(params.features, 1u));
    var sums = vec2<u32>(0u);
    for (var i = ids.local; i < params.features; i += THREADS) {
        let u = element(token, i) * scale;
        sums += to_limbs(bitcast<u32>(u * u), limb);
    }
    let total = from_limbs(group_sum2_u32(sums, ids), limb);
    // This undoes the scale, by 2^(exponent - 128) twice, since its square may not be a float, and gives the limbs their weight, 2^(4 - 2·limb).
    let power = total.y + 4 - 2 * i32(limb);
    let factor = bitcast<f32>(u32(127 + max(i32(exponent) - 128, -126)) << 23u);
    let mean = exact_quotient(f32(total.x), f32(params.features)) * bitcast<f32>(u32(127 + power) << 23u) * factor * factor;
    let inverse = exact_quotient(1.0, exact_sqrt(mean + params.eps));
    return bitcast<f32>(select(bitcast<u32>(inverse), 0x7fc00000u, bits >= 0x7f800000u));
}
