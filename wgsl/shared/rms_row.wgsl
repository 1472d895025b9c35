// rms.wgsl for a row in memory. A kernel that includes this defines `params.features`, `params.eps`, and `element(token, i)`, the i-th number of the
// row. All threads of the workgroup must call this together.

// Numbers that a thread loads before it uses the first.
const BATCH: u32 = 4u;

// A thread's numbers from the i-th on; beyond the row, the last one.
fn elements(token: u32, i: u32) -> array<f32, BATCH> {
    var v = array<f32, BATCH>();
    for (var u = 0u; u < BATCH; u += 1u) { v[u] = element(token, min(i + u * THREADS, params.features - 1u)); }
    return v;
}

fn exact_inverse_rms(token: u32, ids: Ids) -> f32 {
    var largest = 0u;
    for (var i = ids.local; i < params.features; i += BATCH * THREADS) {
        var v = elements(token, i);
        for (var u = 0u; u < BATCH; u += 1u) { largest = max(largest, bitcast<u32>(v[u]) & 0x7fffffffu); }
    }
    largest = group_max_u32(largest, ids);
    let scale = square_scale(row_exponent(largest));
    var sums = vec2<u32>();
    for (var i = ids.local; i < params.features; i += BATCH * THREADS) {
        var v = elements(token, i);
        for (var u = 0u; u < BATCH; u += 1u) { if i + u * THREADS < params.features { sums += limbs(square(v[u] * scale)); } }
    }
    return inverse_rms(largest, group_sum2_u32(sums, ids), params.features, params.eps);
}
