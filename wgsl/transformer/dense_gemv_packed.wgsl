// y[t, r] = (Σ_k x[t, k]·table[r, k]) · table_scale[r] · unit[t] for few tokens t, on top of y if `add` is not 0, of integers: table is [rows, blocks]
// blocks of sixteen int8, x [tokens, 3, blocks] planes of such blocks (quantize_fixed_point.wgsl), y [tokens, rows]. A workgroup computes TILE_X rows ×
// TILE_Y tokens, a team of at least eight lanes four rows at a time: each lane takes every lanes-th block of them. The sum is exact, and rounded once.
struct Params { rows: u32, tokens: u32, blocks: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> table_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> units: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// For row_sums.wgsl: 2^16·x + y.
alias Acc = vec2<i32>;
fn exchange(v: Acc, mask: u32, ids: Ids) -> Acc {
    return vec2<i32>(bitcast<i32>(team_exchange(bitcast<u32>(v.x), mask, ids)), bitcast<i32>(team_exchange(bitcast<u32>(v.y), mask, ids)));
}
fn team_sum(v: Acc, ids: Ids) -> Acc { return vec2<i32>(team_sum_i32(v.x, ids), team_sum_i32(v.y, ids)); }

// A function of its own: naga's Metal declares an operand that is used twice in it twice.
fn packed_dot(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }
fn words_dot(w: vec4<u32>, a: u32) -> vec4<i32> { return vec4<i32>(packed_dot(w.x, a), packed_dot(w.y, a), packed_dot(w.z, a), packed_dot(w.w, a)); }

// Rows that do not exist are read as the last one, and not written.
fn block_of(row: u32, block: u32) -> vec4<u32> { return table[min(row, params.rows - 1u) * params.blocks + block]; }

// Sums of four rows and up to four tokens. Indices are constants, since compilers may put an array into memory instead of registers.
alias Sums = array<vec4<i32>, 4>;

// Adds products of word q of a block: of four rows, w, and of the three planes of all tokens. Where packed products are expanded, the bytes of w then need
// 16 registers; those of whole blocks need 64, which stay in use for all tokens.
fn add_word(w: vec4<u32>, q: u32, block: u32, token0: u32, high: ptr<function, Sums>, middle: ptr<function, Sums>, low: ptr<function, Sums>) {
    for (var c = 0u; c < TILE_Y; c += 1u) {
        // Tokens that do not exist are read as the last one, and not written. Planes are loaded in whole blocks.
        let at = min(token0 + c, params.tokens - 1u) * 3u * params.blocks + block;
        let x0 = x[at];
        let x1 = x[at + params.blocks];
        let x2 = x[at + 2u * params.blocks];
        (*low)[c] += words_dot(w, x0[q]);
        (*middle)[c] += words_dot(w, x1[q]);
        (*high)[c] += words_dot(w, x2[q]);
    }
}

// 2^16·high + 2^8·middle + low, of which any sum over 64 lanes has 32 bits.
fn joined(high: i32, middle: i32, low: i32) -> Acc {
    return vec2<i32>(high + (middle >> 8u) + (low >> 16u), ((middle & 0xff) << 8u) + (low & 0xffff));
}

// 2^16·x + y in a float: both terms are exact, so that their sum is rounded as it is, fused or not.
fn rounded(sum: Acc) -> f32 {
    let high = sum.x + (sum.y >> 16u);
    return f32(high >> 8u) * 16777216.0 + f32(((high & 0xff) << 16u) | (sum.y & 0xffff));
}

// Brings the lanes' sums of four rows together; lane r writes, or adds to, row r.
fn finish(token: u32, row0: u32, high: vec4<i32>, middle: vec4<i32>, low: vec4<i32>, exists: bool, ids: Ids) {
    var rows = array<Acc, ROWS>(
        joined(high.x, middle.x, low.x), joined(high.y, middle.y, low.y), joined(high.z, middle.z, low.z), joined(high.w, middle.w, low.w));
    let sum = row_sum(&rows, ids);
    if exists && token < params.tokens {
        let row = row0 + team_lane(ids);
        let at = token * params.rows + row;
        let product = rounded(sum) * table_scale[row] * units[token];
        if params.add != 0u { y[at] += product; } else { y[at] = product; }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dense_gemv_packed(group: Group, ids: Ids) {
    let token0 = group.id.y * TILE_Y;
    let lane = team_lane(ids);
    for (var turn = team_first(ids) * ROWS; turn < TILE_X; turn += team_count(ids) * ROWS) {
        let first = turn + team_offset(ids) * ROWS;
        let row0 = group.id.x * TILE_X + first;
        var high = Sums();
        var middle = Sums();
        var low = Sums();
        if first < TILE_X {
            for (var i = lane; i < params.blocks; i += team_lanes(ids)) {
                let a = block_of(row0, i);
                let b = block_of(row0 + 1u, i);
                let c = block_of(row0 + 2u, i);
                let d = block_of(row0 + 3u, i);
                add_word(vec4<u32>(a.x, b.x, c.x, d.x), 0u, i, token0, &high, &middle, &low);
                add_word(vec4<u32>(a.y, b.y, c.y, d.y), 1u, i, token0, &high, &middle, &low);
                add_word(vec4<u32>(a.z, b.z, c.z, d.z), 2u, i, token0, &high, &middle, &low);
                add_word(vec4<u32>(a.w, b.w, c.w, d.w), 3u, i, token0, &high, &middle, &low);
            }
        }
        let exists = first < TILE_X && lane < ROWS && row0 + lane < params.rows;
        finish(token0, row0, high[0], middle[0], low[0], exists, ids);
        if TILE_Y > 1u {
            finish(token0 + 1u, row0, high[1], middle[1], low[1], exists, ids);
            finish(token0 + 2u, row0, high[2], middle[2], low[2], exists, ids);
            finish(token0 + 3u, row0, high[3], middle[3], low[3], exists, ids);
        }
    }
}
