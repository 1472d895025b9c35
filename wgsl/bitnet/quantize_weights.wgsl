// Absmean quantization of w [matrices, rows, columns], a matrix at a time: s = 1 / max(mean|w|, 1e-5), code = clamp(round(w·s), -1, 1) + 1, w_scale =
// 1 / s for every row. `sums` [matrices, sums] are the sums of |w| over chunks (sum_abs.wgsl), `count` the number of elements of a matrix. One thread
// per word of sixteen codes, whole workgroups per matrix. Where the mean is not finite, all values of the matrix are 0 and its scales NaN.
struct Params { rows: u32, columns: u32, words: u32, sums: u32, matrices: u32, count: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> w_scale: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_weights(group: Group, ids: Ids) {
    let words = params.rows * params.words;
    let groups = (words + THREADS - 1u) / THREADS;
    let matrix = flat_group(group) / groups;
    if matrix >= params.matrices { return; }
    // Every workgroup adds up all sums of its matrix, in the same order: cheaper than one more dispatch.
    var sum = 0.0;
    for (var i = ids.local; i < params.sums; i += THREADS) { sum += sums[matrix * params.sums + i]; }
    let mean = exact_quotient(fixed_tree(sum, ids.local), params.count);
    let finite = is_finite(mean);
    let s = exact_quotient(1.0, max(mean, 1e-5));

    let index = flat_group(group) % groups * THREADS + ids.local;
    if index >= words { return; }
    let row = matrix * params.rows + index / params.words;
    let column0 = index % params.words * 16u;
    var word = ZEROS;
    for (var e = 0u; finite && e < 16u && column0 + e < params.columns; e += 1u) {
        let value = i32(clamp(round(f32(w[row * params.columns + column0 + e]) * s), -1.0, 1.0));
        word = insertBits(word, u32(value + 1), code_bit(e), 2u);
    }
    codes[matrix * words + index] = word;
    let scale = bitcast<u32>(exact_quotient(1.0, s));
    if column0 == 0u { w_scale[row] = bitcast<f32>(select(0x7fc00000u, scale, finite)); }
}
