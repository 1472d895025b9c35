// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0, on tensor cores; for many tokens t. codes is [rows, words]
// words of sixteen codes, x [tokens, words] vectors of sixteen int8 activations, y [tokens, rows]. A workgroup computes TILE_X rows × TILE_Y tokens, a
// subgroup DOWN × 2 matrices of SIDE × SIDE of them. DEPTH columns are in workgroup memory at a time, as f16, and those that follow are loaded while
// these are multiplied.
// Activations are at most 128 and codes at most 2, so sums are integers up to 2^24, for k up to 2^16: exact in any order.
// A part before brings `Params`, and what is done to a product before it is stored (product_plain.wgsl, product_finish.wgsl).
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

// Words of a line, a row or a token, that are staged, and quads of f16 from one line to the next: two more than it has, so that eight lines meet no
// bank twice.
const STEP: u32 = DEPTH / 16u;
const PITCH: u32 = DEPTH / 4u + 2u;
// Rows, then tokens.
var<workgroup> staged: array<vec4<f16>, (TILE_X + TILE_Y) * PITCH>;
// A matrix of outputs of each subgroup.
var<workgroup> outputs: array<f32, THREADS / LANES * SIDE * SIDE>;
// Scale, and sum of the activations, of the tile's tokens.
var<workgroup> of_tokens: array<vec2<f32>, TILE_Y>;

// What a thread stages: a word of two rows and of two tokens, half a tile apart.
struct Words { w0: u32, w1: u32, x0: vec4<u32>, x1: vec4<u32> }

// The lines that threads stage, neighbors apart, so that those that write at once meet no bank twice.
fn line(local: u32) -> u32 {
    let i = local / STEP;
    return (i & 0xfffffff8u) | ((i & 3u) << 1u) | ((i >> 2u) & 1u);
}

// Where the words of a thread begin, of what is not a line's first: rows and tokens that do not exist are read as the last one, and not written.
struct Starts { w0: u32, w1: u32, x0: u32, x1: u32 }

fn starts(row0: u32, token0: u32, local: u32) -> Starts {
    let row = row0 + line(local);
    let token = token0 + line(local);
    let rows = min(vec2<u32>(row, row + TILE_X / 2u), vec2<u32>(params.rows - 1u)) * params.words + local % STEP;
    let tokens = min(vec2<u32>(token, token + TILE_Y / 2u), vec2<u32>(params.tokens - 1u)) * params.words + local % STEP;
    return Starts(rows.x, rows.y, tokens.x, tokens.y);
}

fn load(lines: Starts, first: u32) -> Words {
    return Words(codes[lines.w0 + first], codes[lines.w1 + first], x[lines.x0 + first], x[lines.x1 + first]);
}

// Two pairs of f16, by their bits: for a compiler that sees that a pair is converted back, without an instruction.
fn quad(a: u32, b: u32) -> vec4<f16> { return vec4<f16>(vec2<f16>(unpack2x16float(a)), vec2<f16>(unpack2x16float(b))); }

// Four codes, bits of which are in the exponent of a half: code·2^-14, in the order 0, 2, 1, 3.
fn weights(even: u32, odd: u32) -> vec4<f16> { return quad(even & 0x0c000c00u, odd & 0x0c000c00u); }

// Of all words of a line the first quads, then the second ones, and so on: the order of columns is free, if it is the same for both.
fn stage_weights(at: u32, word: u32) {
    staged[at] = weights(word << 10u, word << 2u);
    staged[at + STEP] = weights(word << 8u, word);
    staged[at + 2u * STEP] = weights(word << 6u, word >> 2u);
    staged[at + 3u * STEP] = weights(word << 4u, word >> 4u);
}

// Four activations, in the same order: a byte without its sign, v + 128, is the end of the half 1024 + 128 + v.
fn activations(bytes: u32) -> vec4<f16> {
    let biased = bytes ^ 0x80808080u;
    return quad((biased & 0x00ff00ffu) | 0x64006400u, ((biased >> 8u) & 0x00ff00ffu) | 0x64006400u) - vec4<f16>(1152.0h);
}

fn stage_activations(at: u32, bytes: vec4<u32>) {
    staged[at] = activations(bytes.x);
    staged[at + STEP] = activations(bytes.y);
    staged[at + 2u * STEP] = activations(bytes.z);
    staged[at + 3u * STEP] = activations(bytes.w);
}

fn stage(words: Words, local: u32) {
    let at = line(local) * PITCH + local % STEP;
    stage_weights(at, words.w0);
    stage_weights(at + TILE_X / 2u * PITCH, words.w1);
    stage_activations(at + TILE_X * PITCH, words.x0);
    stage_activations(at + (TILE_X + TILE_Y / 2u) * PITCH, words.x1);
}

// The matrices of tokens, or of rows, from one of the tile and from `l` of what is staged of a line on.
fn token_matrix(token: u32, l: u32) -> Left {
    let at = (TILE_X + token) * PITCH + l / 4u;
    return coopLoadT<Left>(&staged[at], PITCH);
}
fn row_matrix(row: u32, l: u32) -> Right {
    let at = row * PITCH + l / 4u;
    return coopLoad<Right>(&staged[at], PITCH);
}

// Stores a matrix, from a token of the tile and a row on, by way of workgroup memory, since lanes do not know which of its elements they hold. A lane
// stores a row of it, of every LANES / SIDE-th token.
fn store(token0: u32, down: u32, row0: u32, sums: Sum, lane: Lane) {
    let start = lane.subgroup * SIDE * SIDE;
    let pitch = SIDE;
    coopStoreT(sums, &outputs[start], pitch);
    workgroupBarrier();
    let row = row0 + lane.id % SIDE;
    if row < params.rows {
        let beta = w_scale[row];
        let of_row = bias_of(row);
        for (var i = 0u; i < SIDE * SIDE; i += LANES) {
            let of_tile = down + (lane.id + i) / SIDE;
            let token = token0 + of_tile;
            if token < params.tokens {
                // Codes are value + 1, so the sum of the activations is subtracted. Both are integers that floats hold.
                let sum = outputs[start + lane.id + i] * 16384.0 - of_tokens[of_tile].y;
                let product = finished(exact_quotient(sum * beta, of_tokens[of_tile].x), of_row);
                let output = token * params.rows + row;
                if params.add != 0u { y[output] = Y(f32(y[output]) + product); } else { y[output] = Y(product); }
            }
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_gemm_tensor_cores(group: Group, ids: Ids, lane: Lane) {
    let row0 = group.id.x * TILE_X;
    let token0 = group.id.y * TILE_Y;
    // The first output of a subgroup in the tile.
    let across = TILE_X / (2u * SIDE);
    let right = lane.subgroup % across * 2u * SIDE;
    let down = lane.subgroup / across * DOWN * SIDE;
    // Sums of tokens, and rows, in matrices.
    var sum00: Sum;
    var sum01: Sum;
    var sum10: Sum;
    var sum11: Sum;
    var sum20: Sum;
    var sum21: Sum;
    var sum30: Sum;
    var sum31: Sum;
    for (var i = ids.local; i < TILE_Y; i += THREADS) {
        let token = min(token0 + i, params.tokens - 1u);
        of_tokens[i] = vec2<f32>(x_scale[token], f32(x_sum[token].x));
    }
    let lines = starts(row0, token0, ids.local);
    var next = load(lines, 0u);
    for (var first = 0u; first < params.words; first += STEP) {
        stage(next, ids.local);
        workgroupBarrier();
        // After the last ones, these once more.
        next = load(lines, min(first + STEP, params.words - STEP));
        for (var l = 0u; l < DEPTH; l += SIDE) {
            let b0 = row_matrix(right, l);
            let b1 = row_matrix(right + SIDE, l);
            let a0 = token_matrix(down, l);
            sum00 = coopMultiplyAdd(a0, b0, sum00);
            sum01 = coopMultiplyAdd(a0, b1, sum01);
            let a1 = token_matrix(down + SIDE, l);
            sum10 = coopMultiplyAdd(a1, b0, sum10);
            sum11 = coopMultiplyAdd(a1, b1, sum11);
            if DOWN > 2u {
                let a2 = token_matrix(down + 2u * SIDE, l);
                sum20 = coopMultiplyAdd(a2, b0, sum20);
                sum21 = coopMultiplyAdd(a2, b1, sum21);
                let a3 = token_matrix(down + 3u * SIDE, l);
                sum30 = coopMultiplyAdd(a3, b0, sum30);
                sum31 = coopMultiplyAdd(a3, b1, sum31);
            }
        }
        workgroupBarrier();
    }
    let row = row0 + right;
    store(token0, down, row, sum00, lane);
    store(token0, down, row + SIDE, sum01, lane);
    store(token0, down + SIDE, row, sum10, lane);
    store(token0, down + SIDE, row + SIDE, sum11, lane);
    if DOWN > 2u {
        store(token0, down + 2u * SIDE, row, sum20, lane);
        store(token0, down + 2u * SIDE, row + SIDE, sum21, lane);
        store(token0, down + 3u * SIDE, row, sum30, lane);
        store(token0, down + 3u * SIDE, row + SIDE, sum31, lane);
    }
}
