// y[i] = combine(a[i], b[i], c[i]), on top of y if `add` is not 0; all are broadcast. The op brings `combine(a: f32, b: f32, c: f32) -> f32`. One
// thread per eight outputs.
@group(0) @binding(0) var<storage, read> a: array<A>;
@group(0) @binding(1) var<storage, read> b: array<X>;
@group(0) @binding(2) var<storage, read> c: array<X>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

fn a_at(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(f32(a[at.x]), f32(a[at.y]), f32(a[at.z]), f32(a[at.w])); }
fn b_at(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(f32(b[at.x]), f32(b[at.y]), f32(b[at.z]), f32(b[at.w])); }
fn c_at(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(f32(c[at.x]), f32(c[at.y]), f32(c[at.z]), f32(c[at.w])); }
fn made(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(combine(a.x, b.x, c.x), combine(a.y, b.y, c.y), combine(a.z, b.z, c.z), combine(a.w, b.w, c.w));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_3(group: Group, ids: Ids) {
    let near = outputs(group, ids, 0u);
    let far = outputs(group, ids, 1u);
    let near_was = before(near);
    let far_was = before(far);
    let near_in_a = operand(near, 0u, params.a_dims);
    let far_in_a = operand(far, 0u, params.a_dims);
    let near_in_b = operand(near, 1u, params.b_dims);
    let far_in_b = operand(far, 1u, params.b_dims);
    let near_in_c = operand(near, 2u, params.c_dims);
    let far_in_c = operand(far, 2u, params.c_dims);
    let a_near = given(0u, a_at(near_in_a), near_was);
    let a_far = given(0u, a_at(far_in_a), far_was);
    let b_near = given(1u, b_at(near_in_b), near_was);
    let b_far = given(1u, b_at(far_in_b), far_was);
    let c_near = given(2u, c_at(near_in_c), near_was);
    let c_far = given(2u, c_at(far_in_c), far_was);
    store(near, near_was, made(a_near, b_near, c_near));
    store(far, far_was, made(a_far, b_far, c_far));
}
