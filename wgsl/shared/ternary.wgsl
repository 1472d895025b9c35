// The lowest bit of code e in a word of sixteen codes. A code is value + 1 in two bits.
fn code_bit(e: u32) -> u32 { return 8u * (e % 4u) + 2u * (e / 4u); }
// Sixteen times the value 0.
const ZEROS: u32 = 0x55555555u;
