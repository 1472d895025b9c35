// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0; for one token t, or each by itself. codes is
// [rows, words] words of sixteen codes, x [tokens, PLANES, words] vectors of four words, y [tokens, rows]. A workgroup computes TILE_X rows of one
// token. A piece of work is ROWS rows and every SPLIT-th part of their words: each of a team's lanes takes every (SPLIT·lanes)-th group of WORDS words
// and the activations that belong to it, TURNS groups at once, so that as many loads are in flight. dot_*.wgsl multiplies a word,
// row_sums.wgsl adds up lanes.
// A part before brings `Params`, and what is done to a product before it is stored (product_plain.wgsl, product_finish.wgsl).
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<Words>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

// [part of the words][row].
var<workgroup> sums: array<Acc, SPLIT * TILE_X>;

// Multiplies groups first, first + lanes, .. of ROWS rows, TURNS of them. `guarded`, a constant where this is called, says that some may not exist.
fn take_turns(first: u32, lanes: u32, guarded: bool, x_start: u32, row_start: ptr<function, array<u32, ROWS>>, acc: ptr<function, array<Acc, ROWS>>) {
    let groups = params.words / WORDS;
    var w = array<array<Words, ROWS>, TURNS>();
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = first + u * lanes;
        if !guarded || i < groups {
            for (var r = 0u; r < ROWS; r += 1u) { w[u][r] = codes[(*row_start)[r] + i]; }
        }
    }
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = first + u * lanes;
        if !guarded || i < groups {
            for (var c = 0u; c < WORDS; c += 1u) {
                var a = array<vec4<u32>, PLANES>();
                for (var p = 0u; p < PLANES; p += 1u) { a[p] = x[x_start + p * params.words + i * WORDS + c]; }
                for (var r = 0u; r < ROWS; r += 1u) { (*acc)[r] = dot_word(word(w[u][r], c), a, (*acc)[r]); }
            }
        }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_gemv(group: Group, ids: Ids) {
    let token = group.id.y;
    // Thread i scales and writes row i of the tile. It loads what it needs for that now, so that it is there when the sums are.
    let row = group.id.x * TILE_X + ids.local;
    let output = token * params.rows + row;
    let writes = ids.local < TILE_X && row < params.rows;
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
    for (var turn = team_first(ids); turn * ROWS < SPLIT * TILE_X; turn += team_count(ids)) {
        let piece = turn + team_offset(ids);
        let first = piece / SPLIT * ROWS;
        var acc = array<Acc, ROWS>();
        if first < TILE_X {
            // Rows that do not exist are read as the last one, and not written.
            var row_start = array<u32, ROWS>();
            for (var r = 0u; r < ROWS; r += 1u) { row_start[r] = min(group.id.x * TILE_X + first + r, params.rows - 1u) * groups; }
            let x_start = token * PLANES * params.words;
            // The team's first group: all of its lanes have a whole turn, or none has.
            var i = piece % SPLIT * lanes;
            for (; i + ((TURNS - 1u) * SPLIT + 1u) * lanes <= groups; i += TURNS * SPLIT * lanes) {
                take_turns(i + lane, SPLIT * lanes, false, x_start, &row_start, &acc);
            }
            take_turns(i + lane, SPLIT * lanes, true, x_start, &row_start, &acc);
        }
        let sum = row_sum(&acc, ids);
        if first < TILE_X && lane < ROWS { sums[piece % SPLIT * TILE_X + first + lane] = sum; }
    }
    workgroupBarrier();
    if writes {
        var sum = sums[ids.local];
        for (var s = 1u; s < SPLIT; s += 1u) { sum += sums[s * TILE_X + ids.local]; }
        let product = finished(exact_quotient(finish(sum, x_total) * beta, a), of_row);
        // Not `base + product`, which would make +0 of -0.
        y[output] = Y(select(product, base + product, params.add != 0u));
    }
}
