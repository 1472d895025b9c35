// y[r, c] = x[r, c], 0 for c >= columns: x [rows, columns], y [rows, padded]. One thread per output.
struct Params { rows: u32, columns: u32, padded: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn pad_rows(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let row = index / params.padded;
    if row >= params.rows { return; }
    let column = index % params.padded;
    if column < params.columns { y[index] = x[row * params.columns + column]; } else { y[index] = X(0); }
}
