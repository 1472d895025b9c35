// y[i] = forward(a[i]), on top of y if `add` is not 0. The op brings `forward(x: f32) -> f32`. One thread per output.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_1(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let was = before(index);
    var x = was;
    if !in_place(0u) { x = f32(a[operand(index, params.a_dims)]); }
    let made = forward(x);
    if params.add != 0u { y[index] = Y(was + made); } else { y[index] = Y(made); }
}
