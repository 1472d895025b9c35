// y[r, c] = forward(gate)·up, on top of y if `add` is not 0: x [rows, 2·features] has gates, then ups, in every row. One thread per output.
struct Params { length: u32, features: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gated(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let at = index + index / params.features * params.features;
    let v = combine(f32(x[at]), f32(x[at + params.features]));
    if params.add != 0u { y[index] = Y(f32(y[index]) + v); } else { y[index] = Y(v); }
}
