// y [rows, columns] = w_scale·(code - w_zero), on top of y if `add` is not 0. One thread per weight.
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
    let v = int_weight(at / params.columns, at % params.columns);
    if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
}
