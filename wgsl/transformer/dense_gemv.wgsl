// y[t, r] = Σ_k x[t, k]·table[r, k] · table_scale[r] for few tokens t, on top of y if `add` is not 0. table is [rows, blocks] blocks of 16 bytes,
// which dense_*.wgsl unpacks into QUADS of four; x has as many elements per row, padded with zeros as the table is; y is [tokens, rows]. For one token x
// is as it comes; for several it is [tokens, QUADS, blocks] quads, so that neighboring lanes read neighboring ones. A workgroup computes TILE_X rows
// × TILE_Y tokens, a team of at least eight lanes four rows at a time: each lane takes every lanes-th block of them. A product is the same bits
// whatever TILE_Y.
struct Params { rows: u32, tokens: u32, blocks: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> table_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// For row_sums.wgsl.
alias Acc = f32;
fn exchange(v: f32, mask: u32, ids: Ids) -> f32 { return bitcast<f32>(team_exchange(bitcast<u32>(v), mask, ids)); }
fn team_sum(v: f32, ids: Ids) -> f32 { return team_sum_f32(v, ids); }

// Tokens that do not exist are read as the last one, and not written.
fn x_quad(token: u32, block: u32, q: u32) -> vec4<f32> {
    let t = min(token, params.tokens - 1u);
    if TILE_Y == 1u { return x[(t * params.blocks + block) * QUADS + q]; }
    return x[(t * QUADS + q) * params.blocks + block];
}

// So are rows.
fn block_of(row: u32, block: u32) -> vec4<u32> { return table[min(row, params.rows - 1u) * params.blocks + block]; }

// Brings the lanes' sums of four rows together; lane r writes, or adds to, row r.
fn finish(token: u32, row0: u32, sums: vec4<f32>, exists: bool, ids: Ids) {
    var rows = array<Acc, ROWS>(sums.x, sums.y, sums.z, sums.w);
    let sum = row_sum(&rows, ids);
    if exists && token < params.tokens {
        let row = row0 + team_lane(ids);
        let at = token * params.rows + row;
        let product = sum * table_scale[row];
        if params.add != 0u { y[at] += product; } else { y[at] = product; }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dense_gemv(group: Group, ids: Ids) {
    let token0 = group.id.y * TILE_Y;
    let lane = team_lane(ids);
    for (var turn = team_first(ids) * ROWS; turn < TILE_X; turn += team_count(ids) * ROWS) {
        let first = turn + team_offset(ids) * ROWS;
        let row0 = group.id.x * TILE_X + first;
        // Of four rows and up to eight tokens. Indices are constants, since compilers may put an array into memory instead of registers.
        var acc = array<vec4<f32>, 8>();
        if first < TILE_X {
            for (var i = lane; i < params.blocks; i += team_lanes(ids)) {
                let w0 = block_of(row0, i);
                let w1 = block_of(row0 + 1u, i);
                let w2 = block_of(row0 + 2u, i);
                let w3 = block_of(row0 + 3u, i);
                for (var q = 0u; q < QUADS; q += 1u) {
                    let q0 = quad(w0, q);
                    let q1 = quad(w1, q);
                    let q2 = quad(w2, q);
                    let q3 = quad(w3, q);
                    for (var c = 0u; c < TILE_Y; c += 1u) {
                        let a = x_quad(token0 + c, i, q);
                        acc[c] += vec4<f32>(dot(q0, a), dot(q1, a), dot(q2, a), dot(q3, a));
                    }
                }
            }
        }
        let exists = first < TILE_X && lane < ROWS && row0 + lane < params.rows;
        finish(token0, row0, acc[0], exists, ids);
        if TILE_Y > 1u {
            finish(token0 + 1u, row0, acc[1], exists, ids);
            finish(token0 + 2u, row0, acc[2], exists, ids);
            finish(token0 + 3u, row0, acc[3], exists, ids);
        }
        if TILE_Y > 4u {
            finish(token0 + 4u, row0, acc[4], exists, ids);
            finish(token0 + 5u, row0, acc[5], exists, ids);
            finish(token0 + 6u, row0, acc[6], exists, ids);
            finish(token0 + 7u, row0, acc[7], exists, ids);
        }
    }
}
