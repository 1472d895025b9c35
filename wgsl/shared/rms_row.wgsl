// rms.wgsl for a row in memory. A kernel that includes this defines `params.features`, `params.eps`, and `element(token, i)`, the i-th number of the
// row. All threads of the workgroup must call this together.
fn exact_inverse_rms(token: u32, ids: Ids) -> f32 {
    var largest = 0u;
    for (var i = ids.local; i < params.features; i += THREADS) { largest = max(largest, bitcast<u32>(element(token, i)) & 0x7fffffffu); }
    largest = group_max_u32(largest, ids);
    let scale = square_scale(row_exponent(largest));
    var sums = vec2<u32>();
    for (var i = ids.local; i < params.features; i += THREADS) { sums += limbs(square(element(token, i) * scale)); }
    return inverse_rms(largest, group_sum2_u32(sums, ids), params.features, params.eps);
}
