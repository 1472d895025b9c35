// The unit of a block in block floating point, and its inverse, from the bits of its largest magnitude. It is the smallest power of two for which that is less
// than 127·2^8 units, so that two bytes with signs hold every number. Numbers so small that their unit has no inverse, or that a device takes for 0, are 0.
fn block_exponent(largest: u32) -> u32 { return max((largest + 0x20000u) >> 23u, 32u); }
fn unit_for(largest: u32) -> f32 { return bitcast<f32>((block_exponent(largest) - 14u) << 23u); }
fn inverse_unit(largest: u32) -> f32 { return bitcast<f32>((268u - block_exponent(largest)) << 23u); }
