// Products of tiles, for attention without a matrix of scores. A workgroup of 16 × 16 threads has ROWS rows of one matrix and goes through another,
// COLUMNS of its rows at a time: these are the columns of a tile of scores. A thread (across, down) has rows 4·down to 4·down + 3 of a tile, and of
// the columns those that lie 16 apart, from `across` on. A kernel that includes this declares `params.tokens` and `params.dim`, the rows and
// columns of all matrices, and brings `element(tensor, at) -> f32` and `store(tensor, at, v)`.

// What a workgroup makes of an output: ROWS rows of a head, from row0 on, and 2·WIDTH columns, from d0 on. Of wider heads, several workgroups compute
// the scores, each for its columns.
struct Strip { head: u32, row0: u32, d0: u32 }

fn strip(index: u32) -> Strip {
    let tiles = (params.tokens + ROWS - 1u) / ROWS;
    let strips = (params.dim + 2u * WIDTH - 1u) / (2u * WIDTH);
    return Strip(index / (tiles * strips), index / strips % tiles * ROWS, index % strips * (2u * WIDTH));
}

// DEPTH columns of the rows of two matrices, or DEPTH rows of one. Numbers of one column, or row, are SLICE apart from those of the next.
var<workgroup> staged: array<f32, DEPTH * SLICE>;
// A tile of what rows of the second matrix are weighted with, column by column, PITCH apart.
var<workgroup> weights: array<f32, COLUMNS * PITCH>;

// What a thread has of a tile of scores: four rows of each of its columns.
alias Scores = array<vec4<f32>, 2>;

fn sees(query: u32, key: u32) -> bool {
    return query < params.tokens && key < params.tokens && (params.causal == 0u || key <= query);
}

// Σ a[row, l]·b[column, l] over l, in its order, for rows from row0 and columns from column0 on; a_at and b_at are where the matrices begin.
fn scores(a: u32, a_at: u32, row0: u32, b: u32, b_at: u32, column0: u32, local: u32) -> Scores {
    let across = local % 16u;
    let down = local / 16u;
    var sums = Scores();
    for (var first = 0u; first < params.dim; first += DEPTH) {
        // Neighboring threads read what lies side by side.
        for (var i = local; i < DEPTH * (ROWS + COLUMNS); i += THREADS) {
            let r = i / DEPTH;
            let l = first + i % DEPTH;
            var v = 0.0;
            if r < ROWS {
                if row0 + r < params.tokens && l < params.dim { v = element(a, a_at + (row0 + r) * params.dim + l); }
            } else {
                let column = column0 + r - ROWS;
                if column < params.tokens && l < params.dim { v = element(b, b_at + column * params.dim + l); }
            }
            staged[i % DEPTH * SLICE + r] = v;
        }
        workgroupBarrier();
        for (var l = 0u; l < DEPTH; l += 1u) {
            let at = l * SLICE + 4u * down;
            let of_a = vec4<f32>(staged[at], staged[at + 1u], staged[at + 2u], staged[at + 3u]);
            let of_b = l * SLICE + ROWS + across;
            sums[0] = fma(of_a, vec4<f32>(staged[of_b]), sums[0]);
            sums[1] = fma(of_a, vec4<f32>(staged[of_b + 16u]), sums[1]);
        }
        workgroupBarrier();
    }
    return sums;
}

// Puts a thread's part of a tile into `weights`.
fn put(tile: Scores, local: u32) {
    var all = tile;
    for (var c = 0u; c < 2u; c += 1u) {
        let at = (local % 16u + 16u * c) * PITCH + local / 16u * 4u;
        for (var r = 0u; r < 4u; r += 1u) { weights[at + r] = all[c][r]; }
    }
}

// sums[row, d] += Σ weights[row, column]·b[column, d] over the tile's columns, in their order, for WIDTH of d from d0 on.
fn add_weighted(b: u32, b_at: u32, column0: u32, d0: u32, local: u32, sums: ptr<function, array<vec4<f32>, 4>>) {
    let across = local % 16u;
    let down = local / 16u;
    for (var first = 0u; first < COLUMNS; first += DEPTH) {
        for (var i = local; i < DEPTH * WIDTH; i += THREADS) {
            let column = column0 + first + i / WIDTH;
            let d = d0 + i % WIDTH;
            var v = 0.0;
            if column < params.tokens && d < params.dim { v = element(b, b_at + column * params.dim + d); }
            staged[i / WIDTH * SLICE + i % WIDTH] = v;
        }
        workgroupBarrier();
        for (var l = 0u; l < DEPTH; l += 1u) {
            let at = (first + l) * PITCH + 4u * down;
            let weight = vec4<f32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
            let of_b = l * SLICE + across;
            (*sums)[0] = fma(weight, vec4<f32>(staged[of_b]), (*sums)[0]);
            (*sums)[1] = fma(weight, vec4<f32>(staged[of_b + 16u]), (*sums)[1]);
            (*sums)[2] = fma(weight, vec4<f32>(staged[of_b + 32u]), (*sums)[2]);
            (*sums)[3] = fma(weight, vec4<f32>(staged[of_b + 48u]), (*sums)[3]);
        }
        workgroupBarrier();
    }
}

// Stores what `add_weighted` has added up for WIDTH columns from d0 on.
fn write(tensor: u32, own: Strip, d0: u32, sums: array<vec4<f32>, 4>, local: u32) {
    var all = sums;
    for (var c = 0u; c < 4u; c += 1u) {
        let d = d0 + local % 16u + 16u * c;
        for (var r = 0u; r < 4u; r += 1u) {
            let row = own.row0 + local / 16u * 4u + r;
            if row < params.tokens && d < params.dim { store(tensor, (own.head * params.tokens + row) * params.dim + d, all[c][r]); }
        }
    }
}
