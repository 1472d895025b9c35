// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0. Parts before bring the sides: `left_quad` and `right_quad` load four
// neighbors of a line, which runs along k where `left_along_k` and `right_along_k` say so, and along the outputs where not.
// A workgroup of 16 × 16 threads makes a tile of (64·BLOCKS)². It stages DEPTH of l at a time, as quads of outputs, and a thread makes BLOCKS² blocks
// of 4 × 4 outputs, 64 apart. Half of the threads stage the left side, half the right one, a block of 4 × 4 each: lines along k are transposed in
// registers. The next block is loaded while this one is multiplied.
const QUADS: u32 = TILE_X / 4u;
const RIGHT: u32 = DEPTH * QUADS;
// What lies `4·d` of l deep is moved by d·SPREAD, so that threads that write quads of one output at several depths meet no bank twice.
const SPREAD: u32 = 32u / DEPTH;
var<workgroup> staged: array<vec4<f32>, 2u * DEPTH * QUADS>;

// Which block a thread stages: of which side, its depth and its outputs, both in quads.
struct Place { right: bool, along_k: bool, depth: u32, output: u32 }

fn place(local: u32) -> Place {
    let right = local >= THREADS / 2u;
    let along_k = select(left_along_k(), right_along_k(), right);
    let i = local % (THREADS / 2u);
    // Neighboring threads read what lies side by side.
    let depth = select(i / QUADS, i % (DEPTH / 4u), along_k);
    let output = select(i % QUADS, i / (DEPTH / 4u), along_k);
    return Place(right, along_k, depth, output);
}

fn load(batch: u32, origin: u32, first: u32, p: Place) -> Block {
    let depth = first + 4u * p.depth;
    let output = origin + 4u * p.output;
    let line = select(depth, output, p.along_k);
    let at = select(output, depth, p.along_k);
    if p.right {
        return Block(
            right_quad(batch, line, at), right_quad(batch, line + 1u, at), right_quad(batch, line + 2u, at), right_quad(batch, line + 3u, at),
        );
    }
    return Block(
        left_quad(batch, line, at), left_quad(batch, line + 1u, at), left_quad(batch, line + 2u, at), left_quad(batch, line + 3u, at),
    );
}

fn stage(block: Block, p: Place) {
    var by_depth = block;
    if p.along_k { by_depth = transposed(block); }
    let at = select(0u, RIGHT, p.right) + 4u * p.depth * QUADS + (p.output ^ (p.depth * SPREAD));
    staged[at] = by_depth.x;
    staged[at + QUADS] = by_depth.y;
    staged[at + 2u * QUADS] = by_depth.z;
    staged[at + 3u * QUADS] = by_depth.w;
}

fn store_block(batch: u32, row: u32, column: u32, sum: Block) {
    store_quad(batch, row, column, sum.x);
    store_quad(batch, row + 1u, column, sum.y);
    store_quad(batch, row + 2u, column, sum.z);
    store_quad(batch, row + 3u, column, sum.w);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul(group: Group, ids: Ids) {
    let row = group.id.y * TILE_Y;
    let column = group.id.x * TILE_X;
    let batch = group.id.z;
    let across = ids.local % 16u;
    let down = ids.local / 16u;
    let p = place(ids.local);
    let origin = select(row, column, p.right);
    // Named, for an array of them some compilers keep in memory.
    var sum00 = Block();
    var sum01 = Block();
    var sum10 = Block();
    var sum11 = Block();
    var next = load(batch, origin, 0u, p);
    for (var first = 0u; first < params.k; first += DEPTH) {
        stage(next, p);
        workgroupBarrier();
        next = load(batch, origin, first + DEPTH, p);
        for (var depth = 0u; depth < DEPTH / 4u; depth += 1u) {
            let of_a = 4u * depth * QUADS + (down ^ (depth * SPREAD));
            let of_b = RIGHT + 4u * depth * QUADS + (across ^ (depth * SPREAD));
            for (var l = 0u; l < 4u; l += 1u) {
                let a0 = staged[of_a + l * QUADS];
                let b0 = staged[of_b + l * QUADS];
                sum00 = outer(a0, b0, sum00);
                if BLOCKS > 1u {
                    let a1 = staged[of_a + l * QUADS + 16u];
                    let b1 = staged[of_b + l * QUADS + 16u];
                    sum01 = outer(a0, b1, sum01);
                    sum10 = outer(a1, b0, sum10);
                    sum11 = outer(a1, b1, sum11);
                }
            }
        }
        workgroupBarrier();
    }
    store_block(batch, row + 4u * down, column + 4u * across, sum00);
    if BLOCKS > 1u {
        store_block(batch, row + 4u * down, column + 64u + 4u * across, sum01);
        store_block(batch, row + 64u + 4u * down, column + 4u * across, sum10);
        store_block(batch, row + 64u + 4u * down, column + 64u + 4u * across, sum11);
    }
}
