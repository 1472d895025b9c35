// What Jacobi's rotations work on: q rows of p + q numbers. Row i has column i of the matrix, p numbers, scaled, and after it row i of the identity,
// which becomes a right singular vector. One thread per number.
struct Params { length: u32, p: u32, q: u32, a_row: u32, a_column: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> rows: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_load(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let width = params.p + params.q;
    let matrix = index / (params.q * width);
    let i = index / width % params.q;
    let j = index % width;
    var v = select(0.0, 1.0, i + params.p == j);
    if j < params.p { v = a[matrix * params.p * params.q + i * params.a_column + j * params.a_row] * scale[matrix]; }
    rows[index] = v;
}
