// y[i] = combine(a[i], b[i], c[i]), on top of y if `add` is not 0; all are broadcast. The op brings `combine(a: f32, b: f32, c: f32) -> f32`. One
// thread per output.
@group(0) @binding(0) var<storage, read> a: array<A>;
@group(0) @binding(1) var<storage, read> b: array<X>;
@group(0) @binding(2) var<storage, read> c: array<X>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_3(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let was = before(index);
    var u = was;
    var v = was;
    var w = was;
    if !in_place(0u) { u = f32(a[operand(index, params.a_dims)]); }
    if !in_place(1u) { v = f32(b[operand(index, params.b_dims)]); }
    if !in_place(2u) { w = f32(c[operand(index, params.c_dims)]); }
    let made = combine(u, v, w);
    if params.add != 0u { y[index] = Y(was + made); } else { y[index] = Y(made); }
}
