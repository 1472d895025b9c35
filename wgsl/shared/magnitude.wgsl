// For shared/lanes: the largest magnitude, by the bits. Those of floats >= 0 are ordered as the floats are, with infinity and then NaN above all.
alias Acc = u32;
fn identity() -> u32 { return 0u; }
fn load(v: f32) -> u32 { return bitcast<u32>(v) & 0x7fffffffu; }
fn combine(a: u32, b: u32) -> u32 { return max(a, b); }
