// y[i] = forward(a[i]), on top of y if `add` is not 0. The op brings `forward(x: f32) -> f32`. One thread per four outputs.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_1(group: Group, ids: Ids) {
    let places = outputs(group, ids);
    let was = before(places);
    let a_at = operand(places, 0u, params.a_dims);
    let x = given(0u, vec4<f32>(f32(a[a_at.x]), f32(a[a_at.y]), f32(a[a_at.z]), f32(a[a_at.w])), was);
    store(places, was, vec4<f32>(forward(x.x), forward(x.y), forward(x.z), forward(x.w)));
}
