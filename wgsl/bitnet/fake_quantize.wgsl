// v + lambda·(ṽ - v), where ṽ = clamp(round(v·scale), -128, 127) / scale: just ṽ where lambda is 1, and NaN where the row is not finite. A kernel that
// includes this defines `params.lambda`.
fn fake_quantize(v: f32, scale: f32, finite: bool) -> f32 {
    let code = i32(clamp(round(v * scale), -128.0, 127.0));
    // There is no code -0, but compilers take a float that was an integer for what it was before.
    let rounded = bitcast<f32>(select(bitcast<u32>(exact_quotient(f32(code), scale)), 0u, code == 0));
    let warmed = select(v + params.lambda * (rounded - v), rounded, params.lambda == 1.0);
    return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(warmed), finite));
}
