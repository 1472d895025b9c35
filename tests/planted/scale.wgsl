struct Params { rows: u32, factor: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.rows { y[id.x] = Y(x[id.x] * params.factor + f32(bias[0])); }
}
