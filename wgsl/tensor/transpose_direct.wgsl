// y[b, c, r] = x[b, r, c]: x [batch, rows, columns]. TILE_X = 8 elements of a row a thread, without workgroup memory, at whose barriers software adapters
// save the registers of all threads.
struct Params { rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn transpose_direct(group: Group, ids: Ids) {
    let row = group.id.y * TILE_Y + ids.local;
    let column = group.id.x * TILE_X;
    let base = group.id.z * params.rows * params.columns;
    if row >= params.rows { return; }
    let start = base + row * params.columns + column;
    let goal = base + column * params.rows + row;
    for (var i = 0u; i < TILE_X; i += 1u) {
        if column + i >= params.columns { break; }
        y[goal + i * params.rows] = x[start + i];
    }
}
