// y = relu(gate)² · up, where a row of x is gate, then up. relu² overflows f16, so y is f32.
struct Params { tokens: u32, features: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn relu2_gate(group: Group, ids: Ids) {
    let place = flat_thread(group, ids);
    let token = place / params.features;
    if token >= params.tokens { return; }
    let i = token * 2u * params.features + place % params.features;
    let gate = max(f32(x[i]), 0.0);
    y[place] = gate * gate * f32(x[i + params.features]);
}
