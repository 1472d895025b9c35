// Maps floats to unsigned integers in the same order, every NaN to NONE, the largest. 0 stands for no number; back from a key, it is -infinity.
// Integers keep NaNs where a compiler takes floats for finite.
const NONE: u32 = 0xffffffffu;

fn to_key(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    // No early return for NaN: with one, NVIDIA's compiler (580.159) makes every winner of top_k below NONE.
    return select(key, NONE, (bits & 0x7fffffffu) > 0x7f800000u);
}
// Is it the key of a number that is not infinite?
fn is_finite_key(key: u32) -> bool { return key > 0x007fffffu && key < 0xff800000u; }
fn from_key(key: u32) -> f32 {
    let v = max(key, 0x007fffffu);
    return bitcast<f32>(select(select(~v, v & 0x7fffffffu, v >= 0x80000000u), 0x7fc00000u, v == NONE));
}
