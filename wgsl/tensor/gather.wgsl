// y[i] = x[ids[i]], rows of `columns`; 0 for an id that is no row. One thread per element.
struct Params { length: u32, rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gather(group: Group, thread: Ids) {
    let index = flat_thread(group, thread);
    if index >= params.length { return; }
    let i = index / params.columns;
    let row = ids[i];
    if row < params.rows { y[index] = x[row * params.columns + index - i * params.columns]; } else { y[index] = X(0); }
}
