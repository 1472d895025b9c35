// Absmean quantisation of w [rows, columns]: s = 1 / max(mean|w|, 1e-5), code = clamp(round(w·s), -1, 1) + 1, w_scale = 1 / s for every row. `sums`
// are the sums of |w| over chunks (sum_abs.wgsl), `count` the number of elements. One thread per word of sixteen codes. Where the mean is not
// finite, all values are 0 and scales NaN.
struct Params { rows: u32, columns: u32, words: u32, sums: u32, count: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> w_scale: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_weights(group: Group, ids: Ids) {
    // Every workgroup adds up all sums, in the same order: cheaper than one more dispatch.
    var sum = 0.0;
    for (var i = ids.local; i < params.sums; i += THREADS) { sum += sums[i]; }
    let mean = exact_quotient(fixed_tree(sum, ids.local), params.count);
    let finite = is_finite(mean);
    let s = exact_quotient(1.0, max(mean, 1e-5));

    let index = flat_thread(group, ids);
    let row = index / params.words;
    if row >= params.rows { return; }
    let column0 = index % params.words * 16u;
    var word = ZEROS;
    for (var e = 0u; finite && e < 16u && column0 + e < params.columns; e += 1u) {
        let value = i32(clamp(round(f32(w[row * params.columns + column0 + e]) * s), -1.0, 1.0));
        word = insertBits(word, u32(value + 1), code_bit(e), 2u);
    }
    codes[index] = word;
    let scale = bitcast<u32>(exact_quotient(1.0, s));
    if column0 == 0u { w_scale[row] = bitcast<f32>(select(0x7fc00000u, scale, finite)); }
}
