// y[i] = combine(a[i], b[i]), on top of y if `add` is not 0; a and b are broadcast. The op brings `combine(a: f32, b: f32) -> f32`. One thread per
// output.
struct Params {
    length: u32, rank: u32, n0: u32, n1: u32, n2: u32, add: u32,
    a_offset: u32, a0: u32, a1: u32, a2: u32, a3: u32,
    b_offset: u32, b0: u32, b1: u32, b2: u32, b3: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> b: array<X>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_2(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let a_value = f32(a[operand(index, params.a_offset, vec4<u32>(params.a0, params.a1, params.a2, params.a3))]);
    let b_value = f32(b[operand(index, params.b_offset, vec4<u32>(params.b0, params.b1, params.b2, params.b3))]);
    let v = combine(a_value, b_value);
    if params.add != 0u { y[index] = Y(f32(y[index]) + v); } else { y[index] = Y(v); }
}
