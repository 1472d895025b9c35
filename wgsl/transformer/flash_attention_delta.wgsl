// delta = Σ y·dy of every row [rows, columns]. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> y: array<X>;
@group(0) @binding(1) var<storage, read> dy: array<X>;
@group(0) @binding(2) var<storage, read_write> delta: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn flash_attention_delta(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var sum = identity();
    for (var i = lane; i < columns; i += params.lanes) { sum = fma(f32(y[first + i]), f32(dy[first + i]), sum); }
    sum = over_lanes(sum, params.lanes, 1u, ids.local);
    if lane == 0u && row < params.rows { delta[row] = sum; }
}
