// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, for devices that gain nothing by workgroup memory: no thread waits for
// another. A thread makes TILE_Y = 8 rows of four columns, for which it loads the right side once: of 16 rows, lavapipe 26.1 stored some that were wrong.
// All threads of a workgroup have the same rows, so what they load of the left side is the same.
fn left_block(batch: u32, row: u32, l: u32) -> Block {
    let line = select(l, row, left_along_k());
    let at = select(row, l, left_along_k());
    let lines =
        Block(left_quad(batch, line, at), left_quad(batch, line + 1u, at), left_quad(batch, line + 2u, at), left_quad(batch, line + 3u, at));
    if left_along_k() { return transposed(lines); }
    return lines;
}

fn right_block(batch: u32, l: u32, column: u32) -> Block {
    let line = select(l, column, right_along_k());
    let at = select(column, l, right_along_k());
    let lines = Block(
        right_quad(batch, line, at), right_quad(batch, line + 1u, at), right_quad(batch, line + 2u, at), right_quad(batch, line + 3u, at),
    );
    if right_along_k() { return transposed(lines); }
    return lines;
}

fn products(a: Block, b: Block, sum: Block) -> Block {
    return outer(a.w, b.w, outer(a.z, b.z, outer(a.y, b.y, outer(a.x, b.x, sum))));
}

fn store_block(batch: u32, row: u32, column: u32, sum: Block) {
    store_quad(batch, row, column, sum.x);
    store_quad(batch, row + 1u, column, sum.y);
    store_quad(batch, row + 2u, column, sum.z);
    store_quad(batch, row + 3u, column, sum.w);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul_direct(group: Group, ids: Ids) {
    let column = group.id.x * TILE_X + 4u * ids.local;
    let row = group.id.y * TILE_Y;
    let batch = group.id.z;
    var upper = Block();
    var lower = Block();
    for (var l = 0u; l < params.k; l += 4u) {
        let b = right_block(batch, l, column);
        upper = products(left_block(batch, row, l), b, upper);
        lower = products(left_block(batch, row + 4u, l), b, lower);
    }
    store_block(batch, row, column, upper);
    store_block(batch, row + 4u, column, lower);
}
