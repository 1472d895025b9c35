// What attention_all.wgsl and attention_buffered.wgsl have in common: tiles of a thread, of four rows and four positions or quads.

// Of four positions, numbers of four rows each; or of four rows, a quad each.
struct Tile { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn added(s: Tile, t: Tile) -> Tile { return Tile(s.a + t.a, s.b + t.b, s.c + t.c, s.d + t.d); }

// Rows that do not exist are read as the last one, and not written.
fn row_of(rows: Rows, row: u32) -> u32 { return min(rows.first + row, rows.count - 1u); }

// The positions that a row sees end here.
fn end_of(rows: Rows, row: u32) -> u32 { return min(rows.past + row_of(rows, row) / rows.sharing + 1u, rows.visible); }

// The first position that a row sees.
fn begin_of(rows: Rows, row: u32) -> u32 { return start_of(rows.past, row_of(rows, row) / rows.sharing); }

// LOWEST instead of scores that are not seen, by rows whose positions are from `begins` to `ends`.
fn seen(position: u32, begins: vec4<u32>, ends: vec4<u32>, v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        select(LOWEST, v.x, begins.x <= position && position < ends.x),
        select(LOWEST, v.y, begins.y <= position && position < ends.y),
        select(LOWEST, v.z, begins.z <= position && position < ends.z),
        select(LOWEST, v.w, begins.w <= position && position < ends.w),
    );
}

fn exp_negatives(x: vec4<f32>) -> vec4<f32> { return vec4<f32>(exp_negative(x.x), exp_negative(x.y), exp_negative(x.z), exp_negative(x.w)); }

// A row may see nothing of a share.
fn weights_of(scores: vec4<f32>, largest: vec4<f32>) -> vec4<f32> {
    let w = exp_negatives(scores - largest);
    return vec4<f32>(
        select(0.0, w.x, scores.x > LOWEST),
        select(0.0, w.y, scores.y > LOWEST),
        select(0.0, w.z, scores.z > LOWEST),
        select(0.0, w.w, scores.w > LOWEST),
    );
}

// Sums of values as `merged` in attention_merge.wgsl has them.
fn grown(so_far: Tile, sum: Tile, shrink: vec4<f32>, grow: vec4<f32>) -> Tile {
    return Tile(
        fma(sum.a, vec4<f32>(grow.x), so_far.a * shrink.x),
        fma(sum.b, vec4<f32>(grow.y), so_far.b * shrink.y),
        fma(sum.c, vec4<f32>(grow.z), so_far.c * shrink.z),
        fma(sum.d, vec4<f32>(grow.w), so_far.d * shrink.w),
    );
}

fn write_row(rows: Rows, row: u32, quad: u32, total: f32, sum: vec4<f32>) {
    if rows.first + row >= rows.count { return; }
    put(head_of(rows, rows.first + row, params.heads) * params.head_dim, quad, quotient(Merged(0.0, total, sum)));
}

// Writes a quad of each of four rows.
fn write_tile(rows: Rows, row: u32, quad: u32, total: vec4<f32>, sums: Tile) {
    write_row(rows, row, quad, total.x, sums.a);
    write_row(rows, row + 1u, quad, total.y, sums.b);
    write_row(rows, row + 2u, quad, total.z, sums.c);
    write_row(rows, row + 3u, quad, total.w, sums.d);
}
