// Elements of x to places in y: dimensions n0, n1, n2 and a fourth, the innermost first, with offsets and strides of both. One thread per element E, which a part before names:
// one of X, or four.
struct Params {
    length: u32, n0: u32, n1: u32, n2: u32,
    x_offset: u32, x0: u32, x1: u32, x2: u32, x3: u32,
    y_offset: u32, y0: u32, y1: u32, y2: u32, y3: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read_write> y: array<E>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn strided_copy(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let q0 = index / params.n0;
    let q1 = q0 / params.n1;
    let q2 = q1 / params.n2;
    let at = vec4<u32>(index - q0 * params.n0, q0 - q1 * params.n1, q1 - q2 * params.n2, q2);
    let place = params.x_offset + dot(at, vec4<u32>(params.x0, params.x1, params.x2, params.x3));
    y[params.y_offset + dot(at, vec4<u32>(params.y0, params.y1, params.y2, params.y3))] = x[place];
}
