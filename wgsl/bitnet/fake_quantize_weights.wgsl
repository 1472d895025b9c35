// y = w + lambda·(w̃ - w) of a stack of matrices of `length` numbers, where w̃ = clamp(round(w·s), -1, 1) / s and s = 1 / max(mean|w|, 1e-5) of a matrix,
// which goes to `scale` [matrices]: just w̃ where lambda is 1, NaN where the mean is not finite. The result is added to y if `add` is not 0. `sums`
// [matrices, sums] are the sums of |w| over chunks (sum_abs.wgsl), `count` the number of weights of a matrix. A workgroup takes TILE_X of them, one at
// least each matrix: the scale of no weights is a number too.
struct Params { length: u32, sums: u32, matrices: u32, add: u32, count: f32, lambda: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;
@group(0) @binding(3) var<storage, read_write> scale: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn fake_quantize_weights(group: Group, ids: Ids) {
    let groups = max((params.length + TILE_X - 1u) / TILE_X, 1u);
    let matrix = flat_group(group) / groups;
    if matrix >= params.matrices { return; }
    // Every workgroup adds up all sums of its matrix, in the same order: cheaper than one more dispatch.
    var sum = 0.0;
    for (var i = ids.local; i < params.sums; i += THREADS) { sum += sums[matrix * params.sums + i]; }
    let mean = exact_quotient(fixed_tree(sum, ids.local), params.count);
    let finite = is_finite(mean);
    let s = exact_quotient(1.0, max(mean, 1e-5));
    let beta = exact_quotient(1.0, s);

    let first = flat_group(group) % groups * TILE_X;
    if first == 0u && ids.local == 0u { scale[matrix] = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(s), finite)); }
    let start = matrix * params.length;
    for (var at = start + first + ids.local; at < start + min(first + TILE_X, params.length); at += THREADS) {
        let v = f32(w[at]);
        let code = i32(clamp(round(v * s), -1.0, 1.0));
        // There is no code -0, but compilers take a float that was an integer for what it was before.
        let rounded = bitcast<f32>(select(bitcast<u32>(f32(code) * beta), 0u, code == 0));
        let warmed = select(v + params.lambda * (rounded - v), rounded, params.lambda == 1.0);
        let made = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(warmed), finite));
        if params.add != 0u { y[at] = X(f32(y[at]) + made); } else { y[at] = X(made); }
    }
}
