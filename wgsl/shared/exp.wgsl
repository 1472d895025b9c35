// e^x for x <= 0, within 2 units in the last place. Drivers may reorder sums (Mesa joins the two parts of ln 2): then within 2 + |x| of them;
// Vulkan's own is allowed 3 + 2·|x|. x = n·ln 2 + r, and e^r is its Taylor series, whose remainder is below 2^-26 for |r| <= ln 2 / 2.
fn exp_negative(x: f32) -> f32 {
    let n = round(max(x, -87.0) * 1.442695041);
    // ln 2 in two parts. The larger has few bits, so that n times it is exact.
    let r = fma(n, -1.42860677e-6, fma(n, -0.693145752, x));
    var p = fma(1.0 / 5040.0, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    return select(p * bitcast<f32>(u32(127 + i32(n)) << 23u), 0.0, x < -87.0);
}
