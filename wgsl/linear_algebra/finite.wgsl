// By its bits, since some compilers assume that there are only finite numbers.
fn is_finite(v: f32) -> bool { return (bitcast<u32>(v) & 0x7fffffffu) < 0x7f800000u; }
