// y[i] = combine(a[i], b[i]), on top of y if `add` is not 0; a and b are broadcast. The op brings `combine(a: f32, b: f32) -> f32` and
// `B`, what b is of. One thread per eight outputs.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> b: array<B>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

fn a_at(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(f32(a[at.x]), f32(a[at.y]), f32(a[at.z]), f32(a[at.w])); }
fn b_at(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(f32(b[at.x]), f32(b[at.y]), f32(b[at.z]), f32(b[at.w])); }
fn made(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(combine(a.x, b.x), combine(a.y, b.y), combine(a.z, b.z), combine(a.w, b.w));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_2(group: Group, ids: Ids) {
    let near = outputs(group, ids, 0u);
    let far = outputs(group, ids, 1u);
    let near_was = before(near);
    let far_was = before(far);
    let near_in_a = operand(near, 0u, params.a_dims);
    let far_in_a = operand(far, 0u, params.a_dims);
    let near_in_b = operand(near, 1u, params.b_dims);
    let far_in_b = operand(far, 1u, params.b_dims);
    let a_near = given(0u, a_at(near_in_a), near_was);
    let a_far = given(0u, a_at(far_in_a), far_was);
    let b_near = given(1u, b_at(near_in_b), near_was);
    let b_far = given(1u, b_at(far_in_b), far_was);
    store(near, near_was, made(a_near, b_near));
    store(far, far_was, made(a_far, b_far));
}
