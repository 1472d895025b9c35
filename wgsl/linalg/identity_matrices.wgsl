// y[i, j] = 1 for i = j, else 0, for every matrix of a batch. One thread per element of y [.., rows, columns].
struct Params { length: u32, rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn identity_matrices(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    y[index] = select(0.0, 1.0, index / params.columns % params.rows == index % params.columns);
}
