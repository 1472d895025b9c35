// Left singular vectors from W = Q·R, whose columns are orthogonal: R is diagonal but for rounding, and u[j] = ±q[j] with the sign of R[j, j].
// y[i·y_row + j·y_column] = ±q[i, j]. One thread per number of Q [p, q].
struct Params { length: u32, p: u32, q: u32, y_row: u32, y_column: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> vectors: array<f32>;
@group(0) @binding(1) var<storage, read> r: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_signs(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let size = params.p * params.q;
    let base = index / size * size;
    let i = index % size / params.q;
    let j = index % params.q;
    let v = vectors[index];
    y[base + i * params.y_row + j * params.y_column] = select(v, -v, r[base + j * params.q + j] < 0.0);
}
