// What all frames share: parameters, bounds, and which element of an operand belongs to one of the output.
//
// Dimensions are counted from the innermost: n0, n1, n2 are the output's (of `rank`, the last needs none). Bit d of a_dims says whether operand a has
// dimension d; it is the same along those that it has not. The host joins dimensions of which every operand has all or none, so that operands of one
// shape have one, and take no division.
struct Params {
    length: u32, rank: u32, n0: u32, n1: u32, n2: u32, add: u32, in_place: u32, a_dims: u32, b_dims: u32, c_dims: u32, alpha: f32, beta: f32,
}
var<immediate> params: Params;

// Four outputs of a thread, its first or, where `half` is 1, its last. They lie as far apart as a workgroup has threads, so that neighbors read what lies side
// by side.
fn outputs(group: Group, ids: Ids, half: u32) -> vec4<u32> {
    return flat_group(group) * TILE_X + ids.local + THREADS * (4u * half + vec4<u32>(0u, 1u, 2u, 3u));
}

fn has(dims: u32, d: u32) -> bool { return ((dims >> d) & 1u) != 0u; }

fn over(a: vec4<u32>, n: u32) -> vec4<u32> { return vec4<u32>(a.x / n, a.y / n, a.z / n, a.w / n); }

// Where an operand has the elements of outputs; something that it has where there is no such output, or where the operand is the output itself.
// Dimensions are written out: their lengths by number would be an array in memory.
fn operand(outputs: vec4<u32>, number: u32, dims: u32) -> vec4<u32> {
    if dims == 0u || in_place(number) { return vec4<u32>(0u); }
    let index = min(outputs, vec4<u32>(params.length - 1u));
    if params.rank <= 1u { return index; }
    let rows = over(index, params.n0);
    var at = vec4<u32>(0u);
    var stride = 1u;
    if has(dims, 0u) { at = index - rows * params.n0; stride = params.n0; }
    if params.rank == 2u { return at + rows * select(0u, stride, has(dims, 1u)); }
    let planes = over(rows, params.n1);
    if has(dims, 1u) { at += (rows - planes * params.n1) * stride; stride *= params.n1; }
    if params.rank == 3u { return at + planes * select(0u, stride, has(dims, 2u)); }
    let outer = over(planes, params.n2);
    if has(dims, 2u) { at += (planes - outer * params.n2) * stride; stride *= params.n2; }
    return at + outer * select(0u, stride, has(dims, 3u));
}

// Is this operand the output itself?
fn in_place(number: u32) -> bool { return has(params.in_place, number); }

// What y holds, where that matters.
fn before(outputs: vec4<u32>) -> vec4<f32> {
    if (params.add | params.in_place) == 0u { return vec4<f32>(0.0); }
    let at = min(outputs, vec4<u32>(params.length - 1u));
    return vec4<f32>(f32(y[at.x]), f32(y[at.y]), f32(y[at.z]), f32(y[at.w]));
}

// What an operand gives: what was read of it, or what y held.
fn given(number: u32, read: vec4<f32>, was: vec4<f32>) -> vec4<f32> { return select(read, was, in_place(number)); }

// A thread makes all before it stores one, so that their loads wait together.
fn store(outputs: vec4<u32>, was: vec4<f32>, made: vec4<f32>) {
    let v = select(made, was + made, params.add != 0u);
    if outputs.x < params.length { y[outputs.x] = Y(v.x); }
    if outputs.y < params.length { y[outputs.y] = Y(v.y); }
    if outputs.z < params.length { y[outputs.z] = Y(v.z); }
    if outputs.w < params.length { y[outputs.w] = Y(v.w); }
}
