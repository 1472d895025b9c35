// 1 / sqrt(mean(v²) + eps) of a row, bit-identical on every device: activations are quantized after it, and real ones often lie exactly between two
// codes, where the last bit decides. Compensated float sums do not survive compilers that reassociate them, so squares are added as integers. Numbers
// are scaled by a power of two, u = v·2^j, so that the largest |u| is in [2^14, 2^15), and u² is rounded to an integer below 2^30, straight after the
// product, which leaves a compiler nothing to reassociate. Each is off by half a unit at most, where the largest is 2^28 or more. The root and the
// quotients are correctly rounded.

// From the bits of the row's largest magnitude: all |v| < 2^(exponent - 126). Rows of numbers below 2^-112 need not be told apart from zeros.
fn row_exponent(largest: u32) -> u32 { return clamp(largest >> 23u, 15u, 254u); }

// What scales numbers to |u| < 2^15.
fn square_scale(exponent: u32) -> f32 { return bitcast<f32>((268u - exponent) << 23u); }

fn square(u: f32) -> u32 { return u32(round(u * u)); }

// An integer as the sum of two limbs, of which 2^17 can be added: x·2^16 + y. The four squares of a quad fit into 32 bits together.
fn limbs(v: u32) -> vec2<u32> { return vec2<u32>(v >> 16u, v & 0xffffu); }

fn quad_limbs(u: vec4<f32>) -> vec2<u32> { return limbs((square(u.x) + square(u.y)) + (square(u.z) + square(u.w))); }

// x·2^16 + y, rounded to 24 significant bits.
fn from_limbs(sums: vec2<u32>) -> f32 {
    let high = sums.x + (sums.y >> 16u);
    let low = sums.y & 0xffffu;
    let shift = countLeadingZeros(high) & 31u;
    // The 32 bits from the highest one that is set.
    let top = (high << shift) | ((low << 15u) >> (31u - shift));
    let rounded = f32((top >> 8u) + ((top >> 7u) & 1u)) * bitcast<f32>((151u - shift) << 23u);
    return select(f32(low), rounded, high != 0u);
}

// 1 / sqrt(v); the quotient of a normal number's root is one too.
fn exact_inverse_sqrt(v: f32) -> f32 {
    if is_normal(bitcast<u32>(v)) { return normal_quotient(1.0, normal_sqrt(v)); }
    return exact_quotient(1.0, sqrt(v));
}

// From the limbs of the sum of squares; NaN for a row with an infinity or a NaN.
fn inverse_rms(largest: u32, sums: vec2<u32>, features: u32, eps: f32) -> f32 {
    let total = from_limbs(sums);
    // This undoes the scale, by 2^(exponent - 141) twice, since its square may not be a float.
    let back = bitcast<f32>((row_exponent(largest) - 14u) << 23u);
    let mean = select(0.0, normal_quotient(total, f32(features)), total > 0.0) * back * back;
    let inverse = exact_inverse_sqrt(mean + eps);
    return bitcast<f32>(select(bitcast<u32>(inverse), 0x7fc00000u, largest >= 0x7f800000u));
}

// A product that no compiler takes apart: NVIDIA's (580.159) makes v·(inverse·gain) of v·inverse·gain where that suits it, which is another number. No row has
// 2^31 features; but that is not known when this is compiled.
fn apart(product: vec4<f32>, features: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(product) | vec4<u32>(features >> 31u));
}
