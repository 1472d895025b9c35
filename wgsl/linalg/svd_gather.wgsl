// Halves of the rows of svd_load.wgsl, sorted, as columns: y[j, i] is number `offset` + j of the i-th row. One thread per element of y [q, q].
struct Params { length: u32, q: u32, offset: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> rows: array<f32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_gather(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let q = params.q;
    let matrix = index / (q * q);
    let row = matrix * q + order[matrix * q + index % q];
    y[index] = rows[row * 2u * q + params.offset + index / q % q];
}
