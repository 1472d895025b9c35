// y[i] = forward(a[i]), on top of y if `add` is not 0. The op brings `forward(x: f32) -> f32`. One thread per eight outputs.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

fn a_at(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(f32(a[at.x]), f32(a[at.y]), f32(a[at.z]), f32(a[at.w])); }
fn made(a: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(forward(a.x), forward(a.y), forward(a.z), forward(a.w));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_1(group: Group, ids: Ids) {
    let near = outputs(group, ids, 0u);
    let far = outputs(group, ids, 1u);
    let near_was = before(near);
    let far_was = before(far);
    let near_in_a = operand(near, 0u, params.a_dims);
    let far_in_a = operand(far, 0u, params.a_dims);
    let a_near = given(0u, a_at(near_in_a), near_was);
    let a_far = given(0u, a_at(far_in_a), far_was);
    store(near, near_was, made(a_near));
    store(far, far_was, made(a_far));
}
