// x / y, correctly rounded on every device. Vulkan allows a division to be 2.5 units in the last place off, and Metal compiles with
// fast math; a last bit of a scale moves quantised codes, so it is settled in integers: with 24-bit significands, the remainder
// x·2^s - q·y is small and so exact modulo 2^32. A quotient of floats is never halfway between two of them.

// Up to two units nearer; a power of two on the way takes a second call.
fn nearer(q: u32, x: u32, y: u32) -> u32 {
    let significand_x = (x & 0x7fffffu) | 0x800000u;
    let significand_y = (y & 0x7fffffu) | 0x800000u;
    let significand_q = (q & 0x7fffffu) | 0x800000u;
    let shift = 150u + (x >> 23u) - (y >> 23u) - (q >> 23u);
    let remainder = bitcast<i32>((significand_x << (shift & 31u)) - significand_q * significand_y);
    // Below a power of two the floats lie twice as dense.
    let below = select(2, 4, (q & 0x7fffffu) == 0u);
    let y1 = i32(significand_y);
    let up = u32(2 * remainder > y1) + u32(2 * remainder > 3 * y1);
    let down = u32(below * remainder < -y1) + u32(below * remainder < -3 * y1);
    return q + up - down;
}

fn is_normal(bits: u32) -> bool { return bits >= 0x00800000u && bits < 0x7f800000u; }

// Zeros, infinities, NaNs, subnormals and quotients out of range are left to the hardware.
fn exact_quotient(x: f32, y: f32) -> f32 {
    let q = bitcast<u32>(x / y);
    let bits_x = bitcast<u32>(x) & 0x7fffffffu;
    let bits_y = bitcast<u32>(y) & 0x7fffffffu;
    var bits_q = q & 0x7fffffffu;
    if !is_normal(bits_x) || !is_normal(bits_y) || !is_normal(bits_q) { return bitcast<f32>(q); }
    bits_q = nearer(nearer(bits_q, bits_x, bits_y), bits_x, bits_y);
    return bitcast<f32>(bits_q | (q & 0x80000000u));
}
