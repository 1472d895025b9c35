// y[r, c] = (code[r, c] - 1) · w_scale[r, c / group_size]: ternary weights as floats, y [rows, columns], on top of y if `add` is
// not 0. One thread per word of sixteen codes.
struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dequantize_weights(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let row = index / params.words;
    if row >= params.rows { return; }
    let column0 = index % params.words * 16u;
    let word = codes[index];
    for (var e = 0u; e < 16u && column0 + e < params.columns; e += 1u) {
        let value = i32(extractBits(word, code_bit(e), 2u)) - 1;
        let scale = w_scale[row * params.groups + (column0 + e) / params.group_size];
        let at = row * params.columns + column0 + e;
        let v = f32(value) * scale;
        if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
    }
}
