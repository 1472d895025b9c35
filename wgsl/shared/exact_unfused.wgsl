// The functions of exact.wgsl for devices whose fma() may round the product. The device's quotient q is corrected in integers: with 24-bit significands
// the remainder x·2^s - q·y is small, and so exact modulo 2^32. A quotient of two floats is never halfway between two floats.

// Moves q by up to two units towards the quotient. Where that crosses a power of two, a second call is needed.
fn nearer(q: u32, x: u32, y: u32) -> u32 {
    let significand_x = (x & 0x7fffffu) | 0x800000u;
    let significand_y = (y & 0x7fffffu) | 0x800000u;
    let significand_q = (q & 0x7fffffu) | 0x800000u;
    let shift = 150u + (x >> 23u) - (y >> 23u) - (q >> 23u);
    let remainder = bitcast<i32>((significand_x << (shift & 31u)) - significand_q * significand_y);
    // Below a power of two, floats are twice as dense.
    let below = select(2, 4, (q & 0x7fffffu) == 0u);
    let divisor = i32(significand_y);
    let up = u32(2 * remainder > divisor) + u32(2 * remainder > 3 * divisor);
    let down = u32(below * remainder < -divisor) + u32(below * remainder < -3 * divisor);
    return q + up - down;
}

// Are these the bits of a positive normal float?
fn is_normal(bits: u32) -> bool { return bits >= 0x00800000u && bits < 0x7f800000u; }

// Where x, y or the quotient is zero, subnormal, infinite or NaN, the result is the device's own.
fn exact_quotient(x: f32, y: f32) -> f32 {
    let q = bitcast<u32>(x / y);
    let bits_x = bitcast<u32>(x) & 0x7fffffffu;
    let bits_y = bitcast<u32>(y) & 0x7fffffffu;
    var bits_q = q & 0x7fffffffu;
    if !is_normal(bits_x) || !is_normal(bits_y) || !is_normal(bits_q) { return bitcast<f32>(q); }
    let close = nearer(bits_q, bits_x, bits_y);
    if (close ^ bits_q) >= 0x800000u { bits_q = nearer(close, bits_x, bits_y); } else { bits_q = close; }
    return bitcast<f32>(bits_q | (q & 0x80000000u));
}

// Moves r by one unit towards the square root of x. As above, the remainder x·2^s - r² is small, and so exact modulo 2^32; and a root is
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

fn normal_quotient(x: f32, y: f32) -> f32 { return exact_quotient(x, y); }

fn normal_sqrt(v: f32) -> f32 { return exact_sqrt(v); }
