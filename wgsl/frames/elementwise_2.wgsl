// y[i] = combine(a[i], b[i]), on top of y if `add` is not 0; a and b are broadcast. The op brings `combine(a: f32, b: f32) -> f32`. One thread per
// output.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> b: array<X>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_2(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let was = before(index);
    var u = was;
    var v = was;
    if !in_place(0u) { u = f32(a[operand(index, params.a_dims)]); }
    if !in_place(1u) { v = f32(b[operand(index, params.b_dims)]); }
    let made = combine(u, v);
    if params.add != 0u { y[index] = Y(was + made); } else { y[index] = Y(made); }
}
