// What Jacobi's rotations work on: q rows of 2q numbers. Row i has row i of R, the upper part of r [p, q], and after it row i of the identity.
// One thread per number.
struct Params { length: u32, p: u32, q: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> r: array<f32>;
@group(0) @binding(1) var<storage, read_write> rows: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_load(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let q = params.q;
    let matrix = index / (2u * q * q);
    let i = index / (2u * q) % q;
    let j = index % (2u * q);
    var v = select(0.0, 1.0, i + q == j);
    if j < q { v = r[matrix * params.p * q + i * q + j]; }
    rows[index] = v;
}
