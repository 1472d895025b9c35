// y = (code - 1) · scale of the row's group: a thread a word of sixteen codes.
struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dequantize_weights(group: Group, ids: Ids) {
    let place = flat_thread(group, ids);
    let row = place / params.words;
    if row >= params.rows { return; }
    let first = place % params.words * 16u;
    let word = codes[place];
    for (var e = 0u; e < 16u && first + e < params.columns; e += 1u) {
        let value = i32(extractBits(word, code_bit(e), 2u)) - 1;
        let scale = w_scale[row * params.groups + (first + e) / params.group_size];
        y[row * params.columns + first + e] = Y(f32(value) * scale);
    }
}
