// y[t, r] = Σ_k x[t, k]·table[r, k] · table_scale[r] for few tokens t, on top of y if `add` is not 0. table is [rows, blocks] blocks of 16 bytes,
// which dense_*.wgsl unpacks; x has as many elements per row, padded with zeros as the table is; y is [tokens, rows]. A workgroup computes TILE_X rows
// × TILE_Y tokens, a team of at least eight lanes ROWS rows at a time: each lane takes every lanes-th block of them.
struct Params { rows: u32, tokens: u32, blocks: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> table_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Block i of ROWS rows. Rows that do not exist are read as the last one, and not written.
fn blocks_of(row0: u32, i: u32) -> array<vec4<u32>, ROWS> {
    var w = array<vec4<u32>, ROWS>();
    for (var r = 0u; r < ROWS; r += 1u) { w[r] = table[min(row0 + r, params.rows - 1u) * params.blocks + i]; }
    return w;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dense_gemv(group: Group, ids: Ids) {
    let token0 = group.id.y * TILE_Y;
    let lane = team_lane(ids);
    for (var turn = team_first(ids) * ROWS; turn < TILE_X; turn += team_count(ids) * ROWS) {
        let first = turn + team_offset(ids) * ROWS;
        let row0 = group.id.x * TILE_X + first;
        var acc = array<array<f32, TILE_Y>, ROWS>();
        if first < TILE_X {
            var next = array<vec4<u32>, ROWS>();
            if lane < params.blocks { next = blocks_of(row0, lane); }
            for (var i = lane; i < params.blocks; i += team_lanes(ids)) {
                // The weights of the next turn are loaded while these are multiplied.
                var w = next;
                if i + team_lanes(ids) < params.blocks { next = blocks_of(row0, i + team_lanes(ids)); }
                for (var c = 0u; c < TILE_Y; c += 1u) {
                    if token0 + c < params.tokens {
                        for (var q = 0u; q < QUADS; q += 1u) {
                            let a = x[((token0 + c) * params.blocks + i) * QUADS + q];
                            for (var r = 0u; r < ROWS; r += 1u) { acc[r][c] += dot(quad(w[r], q), a); }
                        }
                    }
                }
            }
        }
        for (var c = 0u; c < TILE_Y; c += 1u) {
            if token0 + c < params.tokens {
                // Lane r takes the sum of row r, so that all rows are written, or added to, at once.
                var own = 0.0;
                for (var r = 0u; r < ROWS; r += 1u) {
                    let sum = team_sum_f32(acc[r][c], ids);
                    if lane == r { own = sum; }
                }
                let row = row0 + lane;
                if lane < ROWS && first < TILE_X && row < params.rows {
                    let at = (token0 + c) * params.rows + row;
                    let product = own * table_scale[row];
                    if params.add != 0u { y[at] += product; } else { y[at] = product; }
                }
            }
        }
    }
}
