// y[i] = forward(a[i]), on top of y if `add` is not 0. The op brings `forward(x: f32) -> f32`. One thread per four outputs.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

fn made_at(index: u32) -> f32 {
    if index >= params.length { return 0.0; }
    let was = before(index);
    var x = was;
    if !in_place(0u) { x = f32(a[operand(index, params.a_dims)]); }
    return on_top(was, forward(x));
}

fn store(index: u32, v: f32) { if index < params.length { y[index] = Y(v); } }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_1(group: Group, ids: Ids) {
    let first = flat_group(group) * TILE_X + ids.local;
    let second = first + THREADS;
    let third = second + THREADS;
    let fourth = third + THREADS;
    // All are made before one is stored, so that their loads wait together.
    let made = vec4<f32>(made_at(first), made_at(second), made_at(third), made_at(fourth));
    store(first, made.x);
    store(second, made.y);
    store(third, made.z);
    store(fourth, made.w);
}
