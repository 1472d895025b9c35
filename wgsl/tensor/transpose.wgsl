// y[b, c, r] = x[b, r, c]: x [batch, rows, columns]. A workgroup moves a tile of 32 × 32 through workgroup memory, whose rows are one element longer,
// so that reading a column meets no bank twice.
struct Params { rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<X>;

const PITCH: u32 = 33u;
var<workgroup> staged: array<X, 1056>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn transpose(group: Group, ids: Ids) {
    let across = ids.local % WG_X;
    let down = ids.local / WG_X;
    let first_row = group.id.y * TILE_Y;
    let first_column = group.id.x * TILE_X;
    let base = group.id.z * params.rows * params.columns;
    let column = first_column + across;
    for (var i = down; i < TILE_Y; i += WG_Y) {
        let row = first_row + i;
        if row < params.rows && column < params.columns { staged[i * PITCH + across] = x[base + row * params.columns + column]; }
    }
    workgroupBarrier();
    let row = first_row + across;
    for (var i = down; i < TILE_X; i += WG_Y) {
        let of_y = first_column + i;
        if row < params.rows && of_y < params.columns { y[base + of_y * params.rows + row] = staged[across * PITCH + i]; }
    }
}
