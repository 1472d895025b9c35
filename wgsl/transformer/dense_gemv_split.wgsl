// y[t, r] = Σ_k x[t, k]·table[r, k] · table_scale[r] for matrices of few rows, on top of y if `add` is not 0. table is [rows, blocks] quads of floats,
// padded with zeros as x [tokens, blocks] is; y is [tokens, rows]. A workgroup computes ROWS rows of TILE_Y tokens. Its threads share the columns: each
// takes every THREADS-th quad, then the lanes of a team add up, and then teams in order. So the order of a sum does not depend on TILE_Y.
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

// Outputs of a workgroup, which a team of at least eight lanes has a share of each.
const OUTPUTS: u32 = ROWS * TILE_Y;
var<workgroup> shares: array<f32, OUTPUTS * THREADS / 8u>;

// Rows and tokens that do not exist are read as the last one, and not written.
fn row_quad(row: u32, block: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(table[min(row, params.rows - 1u) * params.blocks + block]);
}
fn x_quad(token: u32, block: u32) -> vec4<f32> { return x[min(token, params.tokens - 1u) * params.blocks + block]; }

// Leaves a team's share of four rows of token `c` of the tile.
fn leave(c: u32, sums: vec4<f32>, team: u32, ids: Ids) {
    var rows = array<Acc, ROWS>(sums.x, sums.y, sums.z, sums.w);
    let sum = row_sum(&rows, ids);
    let lane = team_lane(ids);
    if lane < ROWS { shares[team * OUTPUTS + c * ROWS + lane] = sum; }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dense_gemv_split(group: Group, ids: Ids) {
    let row0 = group.id.x * ROWS;
    let token0 = group.id.y * TILE_Y;
    let team = team_first(ids) + team_offset(ids);
    // Of four rows and up to eight tokens. Indices are constants, since compilers may put an array into memory instead of registers.
    var acc = array<vec4<f32>, 8>();
    for (var i = team * team_lanes(ids) + team_lane(ids); i < params.blocks; i += THREADS) {
        let q0 = row_quad(row0, i);
        let q1 = row_quad(row0 + 1u, i);
        let q2 = row_quad(row0 + 2u, i);
        let q3 = row_quad(row0 + 3u, i);
        for (var c = 0u; c < TILE_Y; c += 1u) {
            let a = x_quad(token0 + c, i);
            acc[c] += vec4<f32>(dot(q0, a), dot(q1, a), dot(q2, a), dot(q3, a));
        }
    }
    leave(0u, acc[0], team, ids);
    if TILE_Y > 1u {
        leave(1u, acc[1], team, ids);
        leave(2u, acc[2], team, ids);
        leave(3u, acc[3], team, ids);
        leave(4u, acc[4], team, ids);
        leave(5u, acc[5], team, ids);
        leave(6u, acc[6], team, ids);
        leave(7u, acc[7], team, ids);
    }
    workgroupBarrier();
    let token = token0 + ids.local / ROWS;
    let row = row0 + ids.local % ROWS;
    if ids.local < OUTPUTS && token < params.tokens && row < params.rows {
        var sum = 0.0;
        for (var t = 0u; t < THREADS / team_lanes(ids); t += 1u) { sum += shares[t * OUTPUTS + ids.local]; }
        let at = token * params.rows + row;
        let product = sum * table_scale[row];
        if params.add != 0u { y[at] += product; } else { y[at] = product; }
    }
}
