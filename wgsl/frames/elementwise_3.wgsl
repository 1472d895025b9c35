// y[i] = combine(a[i], b[i], c[i]), on top of y if `add` is not 0; all are broadcast. The op brings `combine(a: f32, b: f32, c: f32) -> f32`. One
// thread per four outputs.
@group(0) @binding(0) var<storage, read> a: array<A>;
@group(0) @binding(1) var<storage, read> b: array<X>;
@group(0) @binding(2) var<storage, read> c: array<X>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_3(group: Group, ids: Ids) {
    let places = outputs(group, ids);
    let was = before(places);
    let a_at = operand(places, 0u, params.a_dims);
    let b_at = operand(places, 1u, params.b_dims);
    let c_at = operand(places, 2u, params.c_dims);
    let u = given(0u, vec4<f32>(f32(a[a_at.x]), f32(a[a_at.y]), f32(a[a_at.z]), f32(a[a_at.w])), was);
    let v = given(1u, vec4<f32>(f32(b[b_at.x]), f32(b[b_at.y]), f32(b[b_at.z]), f32(b[b_at.w])), was);
    let w = given(2u, vec4<f32>(f32(c[c_at.x]), f32(c[c_at.y]), f32(c[c_at.z]), f32(c[c_at.w])), was);
    store(places, was, vec4<f32>(combine(u.x, v.x, w.x), combine(u.y, v.y, w.y), combine(u.z, v.z, w.z), combine(u.w, v.w, w.w)));
}
