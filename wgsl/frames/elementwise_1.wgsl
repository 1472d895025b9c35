// y[i] = forward(a[i]), on top of y if `add` is not 0. The op brings `forward(a: f32) -> f32`. One thread per output.
struct Params { length: u32, rank: u32, n0: u32, n1: u32, n2: u32, add: u32, a_offset: u32, a0: u32, a1: u32, a2: u32, a3: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn elementwise_1(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let v = forward(f32(a[operand(index, params.a_offset, vec4<u32>(params.a0, params.a1, params.a2, params.a3))]));
    if params.add != 0u { y[index] = Y(f32(y[index]) + v); } else { y[index] = Y(v); }
}
