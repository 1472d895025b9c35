// y[t, r] = Σ_g w_scale[r, g]·(Σ xq·code - w_zero[r, g]·Σ xq) / x_scale[t], sums within groups of `group_size` columns, added to y if `add` is not 0.
// codes is [rows, words] of `bits` bits, w_scale and w_zero [rows, groups], x [tokens, x_words] in the int8 layout, y [tokens, rows]. Sums within groups
// are exact integers, and groups are added in their order: what a thread does, whatever the device. A workgroup makes TILE_X rows, one a thread, of
// TILE_Y tokens, and stages UNITS units of 32 columns at a time: groups are whole units, and a unit is `bits` words of codes.
struct Params {
    rows: u32, tokens: u32, columns: u32, words: u32, x_words: u32, groups: u32, group_size: u32, bits: u32, add: u32, biased: u32, activation: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> w_zero: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read> x_scale: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

// Products of four bytes in a unit.
const QUADS: u32 = 8u;
// One longer than the most words, so that threads, a row each, meet no bank twice.
const PITCH: u32 = UNITS * QUADS + 1u;
var<workgroup> staged_codes: array<u32, TILE_X * PITCH>;
var<workgroup> staged_x: array<u32, TILE_Y * UNITS * QUADS>;
// Σ xq of a token's unit.
var<workgroup> staged_sums: array<i32, TILE_Y * UNITS>;

// Padding, and what lies beyond it, is 0; so it does not matter which codes meet it.
fn activation(token: u32, column: u32) -> u32 {
    if token >= params.tokens || column / 4u >= params.x_words { return 0u; }
    return extractBits(x[token * params.x_words + column / 4u], column % 4u * 8u, 8u);
}

// The activations that meet field f of word i of a row: a word that is shifted by f codes, and masked, has every (8 / bits)-th code in a byte.
fn quad(token: u32, column: u32, step: u32) -> u32 {
    return activation(token, column) | (activation(token, column + step) << 8u) | (activation(token, column + 2u * step) << 16u)
        | (activation(token, column + 3u * step) << 24u);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_int_quantized(group: Group, ids: Ids) {
    let first_row = group.id.x * TILE_X;
    let first_token = group.id.y * TILE_Y;
    let row = first_row + ids.local;
    let fields = 8u / params.bits;
    let mask = (0xffu >> (8u - params.bits)) * 0x01010101u;
    // Codes of 8 bits are too large for signed bytes: 128 is taken off, and added again as a multiple of Σ xq.
    let eight = params.bits == 8u;
    let flip = select(0u, 0x80808080u, eight);
    let offset = select(0, 128, eight);
    let staged_words = UNITS * params.bits;
    var products: array<i32, TILE_Y>;
    var x_sums: array<i32, TILE_Y>;
    var sums: array<f32, TILE_Y>;
    for (var first = 0u; first < params.columns; first += UNITS * 32u) {
        for (var i = ids.local; i < TILE_X * staged_words; i += THREADS) {
            let of_row = i / staged_words;
            let word = i % staged_words;
            let at = first / 32u * params.bits + word;
            var v = 0u;
            if first_row + of_row < params.rows && at < params.words { v = codes[(first_row + of_row) * params.words + at]; }
            staged_codes[of_row * PITCH + word] = v;
        }
        for (var i = ids.local; i < TILE_Y * UNITS * QUADS; i += THREADS) {
            let at = i % (UNITS * QUADS);
            staged_x[i] = quad(first_token + i / (UNITS * QUADS), first + at / fields * fields * 4u + at % fields, fields);
        }
        workgroupBarrier();
        for (var i = ids.local; i < TILE_Y * UNITS; i += THREADS) {
            var sum = 0;
            for (var q = 0u; q < QUADS; q += 1u) { sum += dot4I8Packed(staged_x[i * QUADS + q], 0x01010101u); }
            staged_sums[i] = sum;
        }
        workgroupBarrier();
        for (var unit = 0u; unit < UNITS && first + unit * 32u < params.columns; unit += 1u) {
            for (var q = 0u; q < QUADS; q += 1u) {
                let word = staged_codes[ids.local * PITCH + (unit * QUADS + q) / fields];
                let four = ((word >> (q % fields * params.bits)) & mask) ^ flip;
                for (var t = 0u; t < TILE_Y; t += 1u) { products[t] += dot4I8Packed(four, staged_x[(t * UNITS + unit) * QUADS + q]); }
            }
            for (var t = 0u; t < TILE_Y; t += 1u) { x_sums[t] += staged_sums[t * UNITS + unit]; }
            let end = first + unit * 32u + 32u;
            if (end % params.group_size == 0u || end >= params.columns) && row < params.rows {
                let affine = row * params.groups + (end - 32u) / params.group_size;
                let scale = w_scale[affine];
                let zero = w_zero[affine];
                for (var t = 0u; t < TILE_Y; t += 1u) {
                    sums[t] = fma(scale, f32(products[t] + offset * x_sums[t]) - zero * f32(x_sums[t]), sums[t]);
                    products[t] = 0;
                    x_sums[t] = 0;
                }
            }
        }
        workgroupBarrier();
    }
    for (var t = 0u; t < TILE_Y; t += 1u) {
        let token = first_token + t;
        if row < params.rows && token < params.tokens {
            let at = token * params.rows + row;
            let v = finished(exact_quotient(sums[t], x_scale[token]), bias_of(row));
            if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
        }
    }
}
