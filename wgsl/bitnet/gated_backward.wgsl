// The gradient of gated.wgsl: of a gate backward(gate, dy·up), of an up dy·forward(gate), laid out as x is. One thread per pair.
struct Params { length: u32, features: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> dy: array<X>;
@group(0) @binding(2) var<storage, read_write> dx: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gated_backward(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let at = index + index / params.features * params.features;
    let gate = f32(x[at]);
    let slope = f32(dy[index]);
    dx[at] = X(backward(gate, slope * f32(x[at + params.features])));
    dx[at + params.features] = X(slope * forward(gate));
}
