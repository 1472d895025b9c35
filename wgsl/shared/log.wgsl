// ln x for positive normal x, within a few units in the last place, near 1 too, where Vulkan's own may be off by 2^-21. x = m·2^e with m in
// [sqrt(1/2), sqrt(2)), and ln m = 2·atanh(s), s = (m - 1) / (m + 1), by its series, whose remainder is below 2^-30 of it. 0 gives -88 or so.
fn log_positive(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    // 0x3f3504f3 is sqrt(1/2).
    let e = (i32(bits) - 0x3f3504f3) >> 23u;
    let m = bitcast<f32>(bits - (u32(e) << 23u));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    var p = fma(1.0 / 9.0, z, 1.0 / 7.0);
    p = fma(p, z, 1.0 / 5.0);
    p = fma(p, z, 1.0 / 3.0);
    let ln_m = fma(2.0 * s * z, p, 2.0 * s);
    // ln 2 in two parts. The larger has few bits, so that e times it is exact.
    return fma(f32(e), 0.693145752, fma(f32(e), 1.42860677e-6, ln_m));
}
