// Quantizes rows of x [rows, columns] to bytes: those of a workgroup, of which each is shared by `lanes` threads. There are enough of them to fill whole
// words of codes: columns are a multiple of four, or rows are.
// A kernel that includes this defines `params`, `x`, `codes`, what shared/lanes needs and `load`, and
//     grid_of(acc) -> vec2<f32>      the scale of a row and the code of 0; scale NaN for a row that is not finite: its codes are 0
//     store(row, grid)               writes them
//     noise(word) -> vec4<u32>       random words for the four numbers of a word
//     code_of(v, grid, noise)        the code of a number
var<workgroup> grids: array<vec2<f32>, THREADS>;

fn quantize_rows(first_row: u32, ids: Ids) {
    let together = THREADS / params.lanes;
    let row = first_row + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var acc = identity();
    for (var i = lane; i < columns; i += params.lanes) { acc = combine(acc, load(f32(x[row * params.columns + i]))); }
    let grid = grid_of(over_lanes(acc, params.lanes, 1u, ids.local));
    if lane == 0u && row < params.rows {
        grids[ids.local / params.lanes] = grid;
        store(row, grid);
    }
    workgroupBarrier();

    let first = first_row * params.columns;
    let count = min(together, params.rows - first_row) * params.columns;
    for (var at = 4u * ids.local; at < count; at += 4u * THREADS) {
        let word = (first + at) / 4u;
        let random = noise(word);
        var bytes = 0u;
        // What is after the last number stays.
        if at + 4u > count { bytes = codes[word]; }
        var row_here = at / params.columns;
        var column = at - row_here * params.columns;
        for (var j = 0u; j < 4u && at + j < count; j += 1u) {
            var code = 0;
            if is_finite(grids[row_here].x) { code = code_of(f32(x[first + at + j]), grids[row_here], random[j]); }
            bytes = insertBits(bytes, bitcast<u32>(code), 8u * j, 8u);
            column += 1u;
            if column == params.columns {
                column = 0u;
                row_here += 1u;
            }
        }
        codes[word] = bytes;
    }
}
