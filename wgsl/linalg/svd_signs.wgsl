// Singular vectors from W = Q·R, all [q, q], where the columns of W are orthogonal but for rounding: R is diagonal but for that, and the j-th vector is that
// of Q with the sign of R[j, j], and zeros up to `rows` numbers. Where they are `ordered`, row i of W belongs to row order[i] of the matrix:
// y[order[i]·y_row + j·y_column] = ±q[i, j]. One thread per element of y [rows, q].
struct Params { length: u32, rows: u32, q: u32, ordered: u32, y_row: u32, y_column: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> vectors: array<f32>;
@group(0) @binding(1) var<storage, read> r: array<f32>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_signs(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let q = params.q;
    let matrix = index / (params.rows * q);
    let i = index / q % params.rows;
    let j = index % q;
    var v = 0.0;
    if i < q {
        v = vectors[(matrix * q + i) * q + j];
        if r[(matrix * q + j) * q + j] < 0.0 { v = -v; }
    }
    var row = i;
    if params.ordered != 0u { row = order[matrix * q + i]; }
    y[matrix * params.rows * q + row * params.y_row + j * params.y_column] = v;
}
