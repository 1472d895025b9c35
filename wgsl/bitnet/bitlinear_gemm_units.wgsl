// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0, on matrix units; for many tokens t. codes is [rows, words]
// words of sixteen codes, x [tokens, words] vectors of sixteen int8 activations, y [tokens, rows]. A workgroup computes TILE_X rows × TILE_Y tokens, a
// subgroup DOWN × ACROSS matrices of SIDE × SIDE of them. DEPTH columns are in workgroup memory at a time, as halves, and those that follow are loaded
// while these are multiplied.
// Activations are at most 128 and codes at most 2, so sums are integers up to 2^24, for k up to 2^16: exact in any order.
struct Params { rows: u32, tokens: u32, words: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

// Words of a line, a row or a token, that are staged, and quads of halves from one line to the next: two more than it has, so that eight lines meet no
// bank twice.
const STEP: u32 = DEPTH / 16u;
const PITCH: u32 = DEPTH / 4u + 2u;
// STAGES of them: with two, one is written while the other is read.
const STAGE: u32 = (TILE_X + TILE_Y) * PITCH;
var<workgroup> staged: array<vec4<f16>, STAGES * STAGE>;
// Two matrices of outputs of each subgroup, side by side.
var<workgroup> outputs: array<f32, THREADS / LANES * 2u * SIDE * SIDE>;

struct Lane {
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) id: u32,
}

// Two pairs of halves, by their bits: for a compiler that sees that a pair is converted back, without an instruction.
fn quad(a: u32, b: u32) -> vec4<f16> { return vec4<f16>(vec2<f16>(unpack2x16float(a)), vec2<f16>(unpack2x16float(b))); }

// Four codes, bits of which are in the exponent of a half: code·2^-14, in the order 0, 2, 1, 3.
fn weights(even: u32, odd: u32) -> vec4<f16> { return quad(even & 0x0c000c00u, odd & 0x0c000c00u); }

fn stage_weights(at: u32, word: u32) {
    staged[at] = weights(word << 10u, word << 2u);
    staged[at + 1u] = weights(word << 8u, word);
    staged[at + 2u] = weights(word << 6u, word >> 2u);
    staged[at + 3u] = weights(word << 4u, word >> 4u);
}

// Four activations, in the same order: a byte without its sign, v + 128, is the end of the half 1024 + 128 + v.
fn activations(bytes: u32) -> vec4<f16> {
    let biased = bytes ^ 0x80808080u;
    return quad((biased & 0x00ff00ffu) | 0x64006400u, ((biased >> 8u) & 0x00ff00ffu) | 0x64006400u) - vec4<f16>(1152.0h);
}

fn stage_activations(at: u32, bytes: vec4<u32>) {
    staged[at] = activations(bytes.x);
    staged[at + 1u] = activations(bytes.y);
    staged[at + 2u] = activations(bytes.z);
    staged[at + 3u] = activations(bytes.w);
}

// What a thread stages in a turn: word local % STEP of every LINES-th line from local / STEP on, of at most four rows and four tokens.
const LINES: u32 = THREADS / STEP;
struct Next { w: vec4<u32>, x0: vec4<u32>, x1: vec4<u32>, x2: vec4<u32>, x3: vec4<u32> }

// Rows and tokens that do not exist are read as the last one, and not written.
fn code_word(row0: u32, i: u32, first: u32, local: u32) -> u32 {
    return codes[min(row0 + local / STEP + i * LINES, params.rows - 1u) * params.words + first + local % STEP];
}
fn x_word(token0: u32, i: u32, first: u32, local: u32) -> vec4<u32> {
    return x[min(token0 + local / STEP + i * LINES, params.tokens - 1u) * params.words + first + local % STEP];
}

fn load(row0: u32, token0: u32, first: u32, local: u32) -> Next {
    var next: Next;
    next.w.x = code_word(row0, 0u, first, local);
    if TILE_X > LINES { next.w.y = code_word(row0, 1u, first, local); }
    if TILE_X > 2u * LINES {
        next.w.z = code_word(row0, 2u, first, local);
        next.w.w = code_word(row0, 3u, first, local);
    }
    if TILE_Y >= LINES || local < TILE_Y * STEP { next.x0 = x_word(token0, 0u, first, local); }
    if TILE_Y > LINES { next.x1 = x_word(token0, 1u, first, local); }
    if TILE_Y > 2u * LINES {
        next.x2 = x_word(token0, 2u, first, local);
        next.x3 = x_word(token0, 3u, first, local);
    }
    return next;
}

fn stage(start: u32, next: Next, local: u32) {
    let w = start + local / STEP * PITCH + local % STEP * 4u;
    let x = w + TILE_X * PITCH;
    stage_weights(w, next.w.x);
    if TILE_X > LINES { stage_weights(w + LINES * PITCH, next.w.y); }
    if TILE_X > 2u * LINES {
        stage_weights(w + 2u * LINES * PITCH, next.w.z);
        stage_weights(w + 3u * LINES * PITCH, next.w.w);
    }
    if TILE_Y >= LINES || local < TILE_Y * STEP { stage_activations(x, next.x0); }
    if TILE_Y > LINES { stage_activations(x + LINES * PITCH, next.x1); }
    if TILE_Y > 2u * LINES {
        stage_activations(x + 2u * LINES * PITCH, next.x2);
        stage_activations(x + 3u * LINES * PITCH, next.x3);
    }
}

// The matrices of tokens, or of rows, from one of the tile and from column `l` of a stage on.
fn token_matrix(start: u32, token: u32, l: u32) -> Left {
    let at = start + (TILE_X + token) * PITCH + l / 4u;
    return coopLoadT<Left>(&staged[at], PITCH);
}
fn row_matrix(start: u32, row: u32, l: u32) -> Right {
    let at = start + row * PITCH + l / 4u;
    return coopLoad<Right>(&staged[at], PITCH);
}

// Stores two matrices, from a row on, by way of workgroup memory, since lanes do not know which of their elements they hold.
fn store(token0: u32, row0: u32, left: Sum, right: Sum, lane: Lane) {
    let start = lane.subgroup * 2u * SIDE * SIDE;
    let beside = start + SIDE;
    let pitch = 2u * SIDE;
    coopStoreT(left, &outputs[start], pitch);
    coopStoreT(right, &outputs[beside], pitch);
    workgroupBarrier();
    for (var i = lane.id; i < 2u * SIDE * SIDE; i += LANES) {
        let row = row0 + i % (2u * SIDE);
        let token = token0 + i / (2u * SIDE);
        if row < params.rows && token < params.tokens {
            // Codes are value + 1, so the sum of the activations is subtracted.
            let sum = i32(outputs[start + i] * 16384.0) - x_sum[token].x;
            let product = exact_quotient(f32(sum) * w_scale[row], x_scale[token]);
            let output = token * params.rows + row;
            if params.add != 0u { y[output] = Y(f32(y[output]) + product); } else { y[output] = Y(product); }
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_gemm_units(group: Group, ids: Ids, lane: Lane) {
    let row0 = group.id.x * TILE_X;
    let token0 = group.id.y * TILE_Y;
    // The first output of a subgroup in the tile.
    let side_by_side = TILE_X / (ACROSS * SIDE);
    let across = lane.subgroup % side_by_side * ACROSS * SIDE;
    let down = lane.subgroup / side_by_side * DOWN * SIDE;
    // Sums of tokens, and rows, in matrices.
    var sum00: Sum;
    var sum01: Sum;
    var sum02: Sum;
    var sum03: Sum;
    var sum10: Sum;
    var sum11: Sum;
    var sum12: Sum;
    var sum13: Sum;
    var sum20: Sum;
    var sum21: Sum;
    var sum22: Sum;
    var sum23: Sum;
    var sum30: Sum;
    var sum31: Sum;
    var sum32: Sum;
    var sum33: Sum;
    var start = 0u;
    var next = load(row0, token0, 0u, ids.local);
    for (var first = 0u; first < params.words; first += STEP) {
        stage(start, next, ids.local);
        workgroupBarrier();
        // After the last ones, these once more.
        next = load(row0, token0, min(first + STEP, params.words - STEP), ids.local);
        for (var l = 0u; l < DEPTH; l += SIDE) {
            let b0 = row_matrix(start, across, l);
            let b1 = row_matrix(start, across + SIDE, l);
            var b2: Right;
            var b3: Right;
            if ACROSS > 2u {
                b2 = row_matrix(start, across + 2u * SIDE, l);
                b3 = row_matrix(start, across + 3u * SIDE, l);
            }
            let a0 = token_matrix(start, down, l);
            sum00 = coopMultiplyAdd(a0, b0, sum00);
            sum01 = coopMultiplyAdd(a0, b1, sum01);
            if ACROSS > 2u {
                sum02 = coopMultiplyAdd(a0, b2, sum02);
                sum03 = coopMultiplyAdd(a0, b3, sum03);
            }
            if DOWN > 1u {
                let a1 = token_matrix(start, down + SIDE, l);
                sum10 = coopMultiplyAdd(a1, b0, sum10);
                sum11 = coopMultiplyAdd(a1, b1, sum11);
                if ACROSS > 2u {
                    sum12 = coopMultiplyAdd(a1, b2, sum12);
                    sum13 = coopMultiplyAdd(a1, b3, sum13);
                }
            }
            if DOWN > 2u {
                let a2 = token_matrix(start, down + 2u * SIDE, l);
                sum20 = coopMultiplyAdd(a2, b0, sum20);
                sum21 = coopMultiplyAdd(a2, b1, sum21);
                let a3 = token_matrix(start, down + 3u * SIDE, l);
                sum30 = coopMultiplyAdd(a3, b0, sum30);
                sum31 = coopMultiplyAdd(a3, b1, sum31);
                if ACROSS > 2u {
                    sum22 = coopMultiplyAdd(a2, b2, sum22);
                    sum23 = coopMultiplyAdd(a2, b3, sum23);
                    sum32 = coopMultiplyAdd(a3, b2, sum32);
                    sum33 = coopMultiplyAdd(a3, b3, sum33);
                }
            }
        }
        if STAGES == 1u { workgroupBarrier(); }
        start = (STAGES - 1u) * STAGE - start;
    }
    let row = row0 + across;
    let token = token0 + down;
    store(token, row, sum00, sum01, lane);
    if ACROSS > 2u { store(token, row + 2u * SIDE, sum02, sum03, lane); }
    if DOWN > 1u {
        store(token + SIDE, row, sum10, sum11, lane);
        if ACROSS > 2u { store(token + SIDE, row + 2u * SIDE, sum12, sum13, lane); }
    }
    if DOWN > 2u {
        store(token + 2u * SIDE, row, sum20, sum21, lane);
        store(token + 3u * SIDE, row, sum30, sum31, lane);
        if ACROSS > 2u {
            store(token + 2u * SIDE, row + 2u * SIDE, sum22, sum23, lane);
            store(token + 3u * SIDE, row + 2u * SIDE, sum32, sum33, lane);
        }
    }
}
