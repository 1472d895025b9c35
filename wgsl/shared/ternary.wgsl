// The bit at which element e of a word of sixteen codes lies; codes are value + 1.
fn code_bit(e: u32) -> u32 { return 8u * (e % 4u) + 2u * (e / 4u); }
const ZEROS: u32 = 0x55555555u;
