// Quantizes rows of x [rows, columns] to bytes: those of a threadgroup, of which each is shared by `lanes` threads. See wgsl/bitnet/quantize_rows.wgsl.
// `quantizer` has `grid(acc)`, `store(row, grid)`, `noise(word)` and `code(v, grid, noise)`.
template <typename Quantizer>
static void quantize_rows(Quantizer quantizer, device const X* x, device uint* codes, uint first_row, uint rows, uint all_columns, uint lanes,
                          threadgroup Acc* tree, threadgroup float2* grids, uint local)
{
    const uint row = first_row + local / lanes;
    const uint lane = local % lanes;
    // Threads beyond the last row wait for the others.
    const uint columns = row < rows ? all_columns : 0u;
    Acc acc = identity();
    for (uint i = lane; i < columns; i += lanes) acc = combine(acc, load(float(x[row * all_columns + i])));
    acc = over_lanes(acc, lanes, 1u, tree, local);
    if (lane == 0 && row < rows) {
        const float2 grid = quantizer.grid(acc);
        grids[local / lanes] = grid;
        quantizer.store(row, grid);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint first = first_row * all_columns;
    const uint count = min(THREADS / lanes, rows - first_row) * all_columns;
    for (uint at = 4u * local; at < count; at += 4u * THREADS) {
        const uint word = (first + at) / 4u;
        uint4 noise = quantizer.noise(word);
        // What is after the last number stays.
        uint bytes = at + 4u > count ? codes[word] : 0u;
        uint row_here = at / all_columns;
        uint column = at - row_here * all_columns;
        for (uint j = 0; j < 4u && at + j < count; ++j) {
            const float2 grid = grids[row_here];
            const int code = is_finite(grid.x) ? quantizer.code(float(x[first + at + j]), grid, noise.x) : 0;
            noise = noise.yzwx;
            bytes = (bytes & ~(0xffu << (8u * j))) | ((uint(code) & 0xffu) << (8u * j));
            if (++column == all_columns) {
                column = 0;
                ++row_here;
            }
        }
        codes[word] = bytes;
    }
}
