// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, for few tokens t, whose
// activations are in block floating point as two planes of bytes (block_float_store_bytes.wgsl), by packed products of integers: the bits of
// bitlinear_block_float_gemv.wgsl. Blocks are of eight words, and rows are whole quads of words. A workgroup makes TILE_X rows of TILE_Y tokens; a team of LANES
// makes four of the rows, of which a lane takes every LANES-th quad of words. What both quads of a block give is added up and scaled, and these products
// are added in order: by way of workgroup memory, so that a product and the sum that it goes to are never fused.
struct Params { m: u32, n: u32, blocks: u32, words: u32, block_words: u32, groups: u32, group_blocks: u32, lanes: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read> units: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<Y>;

const LANES: u32 = 4u * THREADS / TILE_X;
// Blocks of a turn.
const BLOCKS: u32 = LANES / 2u;
// From one row's blocks to the next one's.
const PITCH: u32 = BLOCKS + 1u;

// What quads of words give to a team's four rows, by token.
var<workgroup> of_quads: array<vec4<i32>, TILE_Y * THREADS>;
// What blocks give, by token, team and row.
var<workgroup> of_blocks: array<f32, TILE_Y * TILE_X * PITCH>;

// Products of four rows' quad of words with a token's activations.
fn of_token(rows: Rows, token: u32, quad: u32) -> vec4<i32> {
    let stride = 8u * params.blocks;
    // Every token has a whole number of blocks, and so of quads.
    let at = min(token, params.m - 1u) * 2u * stride + min(4u * quad, stride - 4u);
    var sums = Sums();
    for (var i = 0u; i < 4u; i += 1u) { sums = add_words(sums, rows, i, x[at + i], x[at + i + stride]); }
    return joined(sums);
}

// The unit of a block, and of how many units it consists.
fn unit_of(token: u32, block: u32) -> vec2<f32> { return units[min(token, params.m - 1u) * params.blocks + block]; }

// What a block of a turn gives to a row of a team, for a token: the sum of its products, less that of its activations, which a float holds.
fn leave(token: u32, team: u32, row: u32, block: u32, unit: vec2<f32>, scale: f32) {
    let at = token * THREADS + team * LANES + 2u * block;
    let sum = of_quads[at][row] + of_quads[at + 1u][row];
    of_blocks[((token * TILE_X / 4u + team) * 4u + row) * PITCH + block] = (f32(sum) - unit.y) * unit.x * scale;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_block_float_packed(group: Group, ids: Ids) {
    let row0 = group.id.x * TILE_X;
    let token = group.id.y * TILE_Y;
    let team = ids.local / LANES;
    let lane = ids.local % LANES;
    // Rows that do not exist are read as the last one, and not written.
    let last = params.n - 1u;
    let first_row = row0 + 4u * team;
    let rows = vec4<u32>(min(first_row, last), min(first_row + 1u, last), min(first_row + 2u, last), min(first_row + 3u, last));
    let starts = rows * (params.words / 4u);
    // The row that a lane adds up, of two blocks of a turn.
    let own_row = lane % 4u;
    let own = lane / 4u;
    let own_scales = min(first_row + own_row, last) * params.groups;
    var total = 0.0;
    var next = load_rows(starts, lane);
    for (var first = 0u; first < params.blocks; first += BLOCKS) {
        let quad = 2u * first + lane;
        let words = next;
        // Loads are on their way before they are needed.
        next = load_rows(starts, quad + LANES);
        let block0 = min(first + own, params.blocks - 1u);
        let block1 = min(first + own + BLOCKS / 2u, params.blocks - 1u);
        let scale0 = w_scale[own_scales + block0 / params.group_blocks];
        let scale1 = w_scale[own_scales + block1 / params.group_blocks];
        for (var t = 0u; t < TILE_Y; t += 1u) { of_quads[t * THREADS + ids.local] = of_token(words, token + t, quad); }
        workgroupBarrier();
        for (var t = 0u; t < TILE_Y; t += 1u) {
            leave(t, team, own_row, own, unit_of(token + t, block0), scale0);
            leave(t, team, own_row, own + BLOCKS / 2u, unit_of(token + t, block1), scale1);
        }
        workgroupBarrier();
        if ids.local < TILE_X * TILE_Y {
            let count = params.blocks - first;
            // Written out, so that loads do not wait for sums; beyond the last block there is nothing to add.
            for (var i = 0u; i < BLOCKS; i += 1u) { total += select(0.0, of_blocks[ids.local * PITCH + i], i < count); }
        }
    }
    if ids.local < TILE_X * TILE_Y {
        let t = token + ids.local / TILE_X;
        let row = row0 + ids.local % TILE_X;
        if t < params.m && row < params.n {
            let at = t * params.n + row;
            if params.add != 0u { y[at] = Y(f32(y[at]) + total); } else { y[at] = Y(total); }
        }
    }
}
