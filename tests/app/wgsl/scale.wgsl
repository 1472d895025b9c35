struct Params { length: u32, factor: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.length { y[id.x] = params.factor * f32(x[id.x]); }
}
