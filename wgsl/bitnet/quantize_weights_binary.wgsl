// w [rows, columns] to one bit per group of `group_size` columns of a row: code 1 where w > mean(w), else 0; w_scale [rows, groups] = 2·mean|w| and
// w_zero = ½, so that weights are ±mean|w|. With `chunks`, both means are those of `matrix_rows` rows, of `count` numbers whose sums are those of
// `sums` [matrices, chunks] (weight_sums.wgsl). One workgroup per group of a row; sums are added in a fixed order, so results are bit-identical on every device.
// Where they are not finite, the codes of the group are 0 and its scale NaN.
struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, matrix_rows: u32, chunks: u32, count: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> w_scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> w_zero: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_weights_binary(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.rows * params.groups { return; }
    let row = index / params.groups;
    let first = (index - row * params.groups) * params.group_size;
    let end = min(first + params.group_size, params.columns);
    var sum = 0.0;
    var sum_abs = 0.0;
    var count = params.count;
    if params.chunks != 0u {
        // Every workgroup adds up all sums of its matrix: cheaper than one more dispatch.
        let matrix = row / params.matrix_rows * params.chunks;
        for (var i = ids.local; i < params.chunks; i += THREADS) {
            sum += sums[2u * (matrix + i)];
            sum_abs += sums[2u * (matrix + i) + 1u];
        }
    } else {
        count = f32(end - first);
        for (var c = first + ids.local; c < end; c += THREADS) {
            let v = f32(w[row * params.columns + c]);
            sum += v;
            sum_abs += abs(v);
        }
    }
    let mean = exact_quotient(fixed_tree(sum, ids.local), count);
    let mean_abs = exact_quotient(fixed_tree(sum_abs, ids.local), count);
    let finite = is_finite(mean_abs);
    // The last group takes what pads the row to whole vectors of words, too.
    let last = select((first + params.group_size) / 32u, params.words, end == params.columns);
    for (var i = first / 32u + ids.local; i < last; i += THREADS) {
        var word = 0u;
        for (var e = 0u; finite && e < 32u && 32u * i + e < params.columns; e += 1u) {
            word |= u32(f32(w[row * params.columns + 32u * i + e]) > mean) << e;
        }
        codes[row * params.words + i] = word;
    }
    if ids.local == 0u {
        let doubled = 2.0 * mean_abs;
        let scale = bitcast<u32>(select(0.0, doubled, doubled >= 0x1p-80f));
        w_scale[index] = bitcast<f32>(select(0x7fc00000u, scale, finite));
        w_zero[index] = 0.5;
    }
}
