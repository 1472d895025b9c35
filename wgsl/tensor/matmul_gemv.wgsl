// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, for few rows and sides whose lines run along k. THREADS / TILE_X
// lanes share a column of TILE_Y rows, 8 of them: each takes every such quad of l, two at a time, so that more loads are in flight. Lanes add up in a
// binary tree.
const LANES: u32 = THREADS / TILE_X;

// The products with a quad of four rows.
fn rows_dot(batch: u32, row: u32, at: u32, w: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        dot(left_quad(batch, row, at), w), dot(left_quad(batch, row + 1u, at), w),
        dot(left_quad(batch, row + 2u, at), w), dot(left_quad(batch, row + 3u, at), w),
    );
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul_gemv(group: Group, ids: Ids) {
    let lane = ids.local % LANES;
    let column = group.id.x * TILE_X + ids.local / LANES;
    let row = group.id.y * TILE_Y;
    let batch = group.id.z;
    var low = vec4<f32>();
    var high = vec4<f32>();
    for (var at = 4u * lane; at < params.k; at += 8u * LANES) {
        let w0 = right_quad(batch, column, at);
        let w1 = right_quad(batch, column, at + 4u * LANES);
        low += rows_dot(batch, row, at, w0);
        low += rows_dot(batch, row, at + 4u * LANES, w1);
        if row + 4u < params.m {
            high += rows_dot(batch, row + 4u, at, w0);
            high += rows_dot(batch, row + 4u, at + 4u * LANES, w1);
        }
    }
    low = over_lanes(low, LANES, 1u, ids.local);
    if row + 4u < params.m { high = over_lanes(high, LANES, 1u, ids.local); }
    // Lane i writes row i.
    if lane < TILE_Y { store(batch, row + lane, column, select(low, high, lane >= 4u)[lane % 4u]); }
}
