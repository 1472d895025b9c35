// Halves of the rows of svd_load.wgsl, sorted, as columns: y[j, i] is number `offset` + j of the i-th row, 0 from q on. One thread per element of
// y [count, q].
struct Params { length: u32, q: u32, offset: u32, count: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> rows: array<f32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_gather(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let q = params.q;
    let matrix = index / (q * params.count);
    let j = index / q % params.count;
    let row = matrix * q + order[matrix * q + index % q];
    var v = 0.0;
    if j < q { v = rows[row * 2u * q + params.offset + j]; }
    y[index] = v;
}
