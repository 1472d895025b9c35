// y [rows, columns] = w_scale·(code - w_zero), on top of y if `add` is not 0. codes has `words` a row, w_scale and w_zero `groups` a row, of
// `group_size` columns each. One thread per weight.
struct Params { length: u32, columns: u32, words: u32, groups: u32, group_size: u32, bits: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> w_zero: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dequantize_int(group: Group, ids: Ids) {
    let at = flat_thread(group, ids);
    if at >= params.length { return; }
    let row = at / params.columns;
    let column = at % params.columns;
    let bit = column * params.bits;
    let code = extractBits(codes[row * params.words + bit / 32u], bit % 32u, params.bits);
    let affine = row * params.groups + column / params.group_size;
    let v = w_scale[affine] * (f32(code) - w_zero[affine]);
    if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
}
