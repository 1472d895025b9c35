// y[i] = activation(number(i) + bias[i mod columns]), added to y if `add` is not 0. `bias` is not read where `biased` is 0. A part before brings
// `number`, and what it is read from.
struct Params { length: u32, columns: u32, add: u32, biased: u32, activation: u32 }
var<immediate> params: Params;
@group(0) @binding(1) var<storage, read> bias: array<Y>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn finish(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    var v = number(i);
    if params.biased != 0u { v += f32(bias[i % params.columns]); }
    v = activated(v);
    if params.add != 0u { y[i] = Y(f32(y[i]) + v); } else { y[i] = Y(v); }
}
