// The gradient of a reduction: for every element of x, from what its output got. Dimensions of x are counted from the innermost: n0, n1, n2 long (the
// last needs none), outputs o0.. apart, or numbers of an output i0.. apart. The result is added to dx if `add` is not 0. One thread per element.
//
// An op brings its bindings, dx among them, and `gradient(at, index, output) -> f32` for the number `index` of an output, which is the element `at`.
struct Params {
    length: u32, n0: u32, n1: u32, n2: u32, o0: u32, o1: u32, o2: u32, o3: u32, i0: u32, i1: u32, i2: u32, i3: u32, add: u32, factor: f32,
}
var<immediate> params: Params;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn spread(group: Group, ids: Ids) {
    let at = flat_thread(group, ids);
    if at >= params.length { return; }
    let q0 = at / params.n0;
    let q1 = q0 / params.n1;
    let q2 = q1 / params.n2;
    let place = vec4<u32>(at - q0 * params.n0, q0 - q1 * params.n1, q1 - q2 * params.n2, q2);
    let output = dot(place, vec4<u32>(params.o0, params.o1, params.o2, params.o3));
    let index = dot(place, vec4<u32>(params.i0, params.i1, params.i2, params.i3));
    let v = gradient(at, index, output);
    if params.add != 0u { dx[at] = X(f32(dx[at]) + v); } else { dx[at] = X(v); }
}
