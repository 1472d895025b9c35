// y[r, i] = code / scale[r] of codes in 4 bits, eight a word, on top of y [rows, columns] if `add` is not 0. One thread per word of codes.
struct Params { rows: u32, columns: u32, words: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dequantize_int4(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let row = index / params.words;
    if row >= params.rows { return; }
    let column = index % params.words * 8u;
    let word = bitcast<i32>(codes[index]);
    for (var j = 0u; j < 8u && column + j < params.columns; j += 1u) {
        let at = row * params.columns + column + j;
        let v = exact_quotient(f32(extractBits(word, 4u * j, 4u)), scales[row]);
        if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
    }
}
