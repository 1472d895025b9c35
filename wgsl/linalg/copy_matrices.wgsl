// y[i, j] = x[i·x_row + j·x_column] for every matrix of a batch: a copy, a transpose, or the upper left corner of a larger matrix. One thread per
// element of y [.., rows, columns].
struct Params { length: u32, rows: u32, columns: u32, x_matrix: u32, x_row: u32, x_column: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn copy_matrices(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let row = index / params.columns;
    y[index] = x[row / params.rows * params.x_matrix + row % params.rows * params.x_row + index % params.columns * params.x_column];
}
