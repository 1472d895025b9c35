// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, for few rows, where lines of the left side run along k and those of
// the right side along columns. A thread takes four columns of TILE_Y = 4 rows, and every SLICES-th quad of l; those with the same columns add up in a
// binary tree.
const QUADS: u32 = TILE_X / 4u;
const SLICES: u32 = THREADS / QUADS;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul_gemv_columns(group: Group, ids: Ids) {
    let slice = ids.local / QUADS;
    let column = group.id.x * TILE_X + 4u * (ids.local % QUADS);
    let row = group.id.y * TILE_Y;
    let batch = group.id.z;
    var sum = Block();
    for (var l = 4u * slice; l < params.k; l += 4u * SLICES) {
        let b = Block(
            right_quad(batch, l, column), right_quad(batch, l + 1u, column),
            right_quad(batch, l + 2u, column), right_quad(batch, l + 3u, column),
        );
        let rows = Block(
            left_quad(batch, row, l), left_quad(batch, row + 1u, l),
            left_quad(batch, row + 2u, l), left_quad(batch, row + 3u, l),
        );
        let a = transposed(rows);
        sum = outer(a.w, b.w, outer(a.z, b.z, outer(a.y, b.y, outer(a.x, b.x, sum))));
    }
    var own = over_lanes(sum.x, SLICES, QUADS, ids.local);
    // Slice i writes row i.
    let second = over_lanes(sum.y, SLICES, QUADS, ids.local);
    let third = over_lanes(sum.z, SLICES, QUADS, ids.local);
    let fourth = over_lanes(sum.w, SLICES, QUADS, ids.local);
    if slice == 1u { own = second; }
    if slice == 2u { own = third; }
    if slice == 3u { own = fourth; }
    if slice < TILE_Y { store_quad(batch, row + slice, column, own); }
}
