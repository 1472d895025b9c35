// y = relu(gate)² · up, where a row of x [tokens, 2·features] is gate, then up. relu² overflows f16, so y [tokens, features] is f32. One thread per
// output.
struct Params { tokens: u32, features: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn relu2_gate(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let token = index / params.features;
    if token >= params.tokens { return; }
    let gate_index = token * 2u * params.features + index % params.features;
    let gate = max(f32(x[gate_index]), 0.0);
    y[index] = gate * gate * f32(x[gate_index + params.features]);
}
