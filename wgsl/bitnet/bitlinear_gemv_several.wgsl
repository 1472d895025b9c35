// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0; for several tokens t. codes is [rows, words] words of
// sixteen codes, x [tokens, PLANES, words] vectors of four words, y [tokens, rows]. A workgroup computes TILE_X rows of TILE_Y tokens (2, 4 or 8). A
// piece of work is four rows of all these tokens and every SPLIT-th part of their words, which are read once. Each of a team's lanes takes every
// (SPLIT·lanes)-th group of WORDS words and the activations that belong to it, TURNS groups at once, so that as many loads are in flight.
// dot_*.wgsl multiplies a word.
// A part before brings `Params`, and what is done to a product before it is stored (product_plain.wgsl, product_finish.wgsl).
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<Words>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

// Sums over eight lanes: [piece][eight lanes of a team][token], of the piece's four rows. A team has at most 64 lanes.
const PIECES: u32 = SPLIT * TILE_X / 4u;
var<workgroup> sums: array<vec4<Acc>, PIECES * 8u * TILE_Y>;

// Four rows' words of a group.
struct Rows { r0: Words, r1: Words, r2: Words, r3: Words }

// Adds the products of word i of four rows with token t of the tile. A token that does not exist is read as the last one, and not written.
fn dot_rows(w: vec4<u32>, token: u32, i: u32, acc: vec4<Acc>) -> vec4<Acc> {
    var a = array<vec4<u32>, PLANES>();
    let start = min(token, params.tokens - 1u) * PLANES * params.words + i;
    for (var p = 0u; p < PLANES; p += 1u) { a[p] = x[start + p * params.words]; }
    return vec4<Acc>(dot_word(w.x, a, acc.x), dot_word(w.y, a, acc.y), dot_word(w.z, a, acc.z), dot_word(w.w, a, acc.w));
}

// Multiplies word c of a group of four rows with all tokens. Where this is in a loop over c, lavapipe 26.1 crashes: it reads x through a pointer that
// SIMD groups without an active lane do not have.
fn dot_tokens(w: Rows, c: u32, token0: u32, i: u32, acc: ptr<function, array<vec4<Acc>, TILE_Y>>) {
    let v = vec4<u32>(word(w.r0, c), word(w.r1, c), word(w.r2, c), word(w.r3, c));
    for (var t = 0u; t < TILE_Y; t += 1u) { (*acc)[t] = dot_rows(v, token0 + t, i * WORDS + c, (*acc)[t]); }
}

// Multiplies groups first, first + lanes, .. of four rows, TURNS of them. `guarded`, a constant where this is called, says that some may not exist.
fn take_turns(
    first: u32, lanes: u32, guarded: bool, token0: u32, row_start: vec4<u32>, acc: ptr<function, array<vec4<Acc>, TILE_Y>>
) {
    let groups = params.words / WORDS;
    var w = array<Rows, TURNS>();
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = first + u * lanes;
        if !guarded || i < groups {
            w[u] = Rows(codes[row_start.x + i], codes[row_start.y + i], codes[row_start.z + i], codes[row_start.w + i]);
        }
    }
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = first + u * lanes;
        if !guarded || i < groups {
            dot_tokens(w[u], 0u, token0, i, acc);
            if WORDS > 1u { dot_tokens(w[u], WORDS - 1u, token0, i, acc); }
        }
    }
}

// The sum over two lanes whose numbers differ in the bit `mask`, a constant, for which GPUs have instructions.
fn both(v: vec4<Acc>, mask: u32, ids: Ids) -> vec4<Acc> {
    return v + vec4<Acc>(exchange(v.x, mask, ids), exchange(v.y, mask, ids), exchange(v.z, mask, ids), exchange(v.w, mask, ids));
}

// Such lanes share two tokens: one keeps the even one's sums, the other the odd one's, and each gives the other the rest.
fn share(even: vec4<Acc>, odd: vec4<Acc>, mask: u32, ids: Ids) -> vec4<Acc> {
    let keeps_odd = (team_lane(ids) & mask) != 0u;
    let given = select(odd, even, keeps_odd);
    return select(even, odd, keeps_odd)
        + vec4<Acc>(exchange(given.x, mask, ids), exchange(given.y, mask, ids), exchange(given.z, mask, ids), exchange(given.w, mask, ids));
}

// Sums over eight lanes: lane l is left with token l % TILE_Y. They are exact in any order. Without a loop, since compilers that do not unroll it put
// `acc` into memory instead of registers.
fn share_tokens(acc: array<vec4<Acc>, TILE_Y>, ids: Ids) -> vec4<Acc> {
    let t01 = share(acc[0], acc[1], 1u, ids);
    if TILE_Y == 2u { return both(both(t01, 2u, ids), 4u, ids); }
    let t0123 = share(t01, share(acc[2u % TILE_Y], acc[3u % TILE_Y], 1u, ids), 2u, ids);
    if TILE_Y == 4u { return both(t0123, 4u, ids); }
    let t45 = share(acc[4u % TILE_Y], acc[5u % TILE_Y], 1u, ids);
    return share(t0123, share(t45, share(acc[6u % TILE_Y], acc[7u % TILE_Y], 1u, ids), 2u, ids), 4u, ids);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_gemv_several(group: Group, ids: Ids) {
    let row0 = group.id.x * TILE_X;
    let token0 = group.id.y * TILE_Y;
    // Thread i scales and writes output i of the tile. It loads what it needs for that now, so that it is there when the sums are.
    let row = row0 + ids.local % TILE_X;
    let token = token0 + ids.local / TILE_X;
    let output = token * params.rows + row;
    let writes = ids.local < TILE_X * TILE_Y && row < params.rows && token < params.tokens;
    var beta = 0.0;
    var a = 1.0;
    var x_total = vec2<i32>();
    var base = 0.0;
    var of_row = 0.0;
    if writes {
        beta = w_scale[row];
        a = x_scale[token];
        x_total = x_sum[token];
        if params.add != 0u { base = f32(y[output]); }
        of_row = bias_of(row);
    }

    let groups = params.words / WORDS;
    let lane = team_lane(ids);
    let lanes = team_lanes(ids);
    for (var turn = team_first(ids); turn < PIECES; turn += team_count(ids)) {
        let piece = turn + team_offset(ids);
        var acc = array<vec4<Acc>, TILE_Y>();
        if piece < PIECES {
            // Rows that do not exist are read as the last one, and not written.
            let first = row0 + piece / SPLIT * 4u;
            let last = params.rows - 1u;
            let row_start = vec4<u32>(min(first, last), min(first + 1u, last), min(first + 2u, last), min(first + 3u, last)) * groups;
            // The team's first group: all of its lanes have a whole turn, or none has.
            var i = piece % SPLIT * lanes;
            for (; i + ((TURNS - 1u) * SPLIT + 1u) * lanes <= groups; i += TURNS * SPLIT * lanes) {
                take_turns(i + lane, SPLIT * lanes, false, token0, row_start, &acc);
            }
            take_turns(i + lane, SPLIT * lanes, true, token0, row_start, &acc);
        }
        let sum = share_tokens(acc, ids);
        if piece < PIECES && lane % 8u < TILE_Y { sums[(piece * (lanes / 8u) + lane / 8u) * TILE_Y + lane % 8u] = sum; }
    }
    workgroupBarrier();
    if writes {
        let parts = SPLIT * (lanes / 8u);
        let first = ids.local % TILE_X / 4u * parts * TILE_Y + ids.local / TILE_X;
        var sum = sums[first][row % 4u];
        for (var s = 1u; s < parts; s += 1u) { sum += sums[first + s * TILE_Y][row % 4u]; }
        let product = finished(exact_quotient(finish(sum, x_total) * beta, a), of_row);
        // Not `base + product`, which would make +0 of -0.
        y[output] = Y(select(product, base + product, params.add != 0u));
    }
}
