// x / y and the square root, correctly rounded on every device. Vulkan lets a division be off by 2.5 units in the last place, and Metal compiles with fast
// math; but the last bit of a scale can move a quantized code. So a quotient of significands is corrected by its remainder, which a fused multiply-add
// gives exactly. Devices that do not fuse, as a probe tells when one is opened, have exact_unfused.wgsl.

// Are these the bits of a positive normal float?
fn is_normal(bits: u32) -> bool { return bits >= 0x00800000u && bits < 0x7f800000u; }

fn significand(bits: u32) -> f32 { return bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u); }

// The bits of |x / y|, where x, y and the quotient are normal numbers.
fn quotient_bits(x: f32, y: f32) -> u32 {
    let bits_x = bitcast<u32>(x);
    let bits_y = bitcast<u32>(y);
    let a = significand(bits_x);
    let b = significand(bits_y);
    let inverse = 1.0 / b;
    let near = a * inverse;
    // Less than a unit off, in (1/2, 2).
    let q = fma(fma(-b, near, a), inverse, near);
    let remainder = fma(-b, q, a);
    // Half a unit of q is 2^-24 from 1 on, and half of that below. A quotient of two floats is never halfway between two floats.
    let up = remainder > b * select(0x1p-25f, 0x1p-24f, q >= 1.0);
    let down = remainder < -b * select(0x1p-25f, 0x1p-24f, q > 1.0);
    return bitcast<u32>(q) + u32(up) - u32(down) + (bits_x & 0x7f800000u) - (bits_y & 0x7f800000u);
}

// Of positive normal numbers with a normal quotient: without a branch for others.
fn normal_quotient(x: f32, y: f32) -> f32 { return bitcast<f32>(quotient_bits(x, y)); }

// Where x, y or the quotient is zero, subnormal, infinite or NaN, the result is the device's own.
fn exact_quotient(x: f32, y: f32) -> f32 {
    let bits_x = bitcast<u32>(x);
    let bits_y = bitcast<u32>(y);
    let bits = quotient_bits(x, y);
    if !is_normal(bits_x & 0x7fffffffu) || !is_normal(bits_y & 0x7fffffffu) || !is_normal(bits) { return x / y; }
    return bitcast<f32>(bits | ((bits_x ^ bits_y) & 0x80000000u));
}

// Of a positive normal number. Checked for all 2^24 significands and exponents' parities, and inverse roots that are off by up to three units.
fn normal_sqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    // m in [1, 4), for m·2^(2·e).
    let odd = (bits >> 23u) & 1u;
    let m = bitcast<f32>((bits & 0x7fffffu) | select(0x40000000u, 0x3f800000u, odd == 1u));
    let inverse = inverseSqrt(m);
    let near = m * inverse;
    let half = 0.5 * inverse;
    let error = fma(-near, half, 0.5);
    let r = fma(near, error, near);
    let root = bitcast<u32>(fma(fma(-r, r, m), fma(half, error, half), r));
    return bitcast<f32>(root + ((((bits >> 23u) + odd) >> 1u) << 23u) - 0x20000000u);
}

// Of zeros, subnormal and negative numbers, infinity and NaN, the device's own.
fn exact_sqrt(x: f32) -> f32 {
    if is_normal(bitcast<u32>(x)) { return normal_sqrt(x); }
    return sqrt(x);
}
