// y[t, r] = Σ_g (Σ_{k in g} xq[t, k]·Wq[r, k]) · w_scale[r, g] / x_scale[t], added to y if `add` is not 0: scales for groups of `group_words` words.
// codes is [rows, words], w_scale [rows, groups], x [tokens, words] vectors of four words in the int8 layout, y [tokens, rows]. A workgroup computes
// TILE_X rows of TILE_Y tokens, a team one row of all these tokens at a time. The sum of a word is an exact integer; the scaled sums are floats, whose
// last bits depend on the order, which is the same for any TILE_Y.
struct Params { rows: u32, tokens: u32, words: u32, groups: u32, group_words: u32, add: u32, biased: u32, activation: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_grouped(group: Group, ids: Ids) {
    let token0 = group.id.y * TILE_Y;
    let lane = team_lane(ids);
    for (var turn = team_first(ids); turn < TILE_X; turn += team_count(ids)) {
        let first = turn + team_offset(ids);
        let row = group.id.x * TILE_X + first;
        // Rows and tokens that do not exist are read as the last one, and not written.
        let last = min(row, params.rows - 1u);
        var sums = array<f32, TILE_Y>();
        if first < TILE_X {
            for (var i = lane; i < params.words; i += team_lanes(ids)) {
                let word = codes[last * params.words + i];
                let scale = w_scale[last * params.groups + min(i / params.group_words, params.groups - 1u)];
                for (var t = 0u; t < TILE_Y; t += 1u) {
                    let a = x[min(token0 + t, params.tokens - 1u) * params.words + i];
                    // Codes are value + 1, so the sum of the word's activations is subtracted. The padding beyond the last group has activations 0.
                    let ones = dot4I8Packed(a.x, 0x01010101u) + dot4I8Packed(a.y, 0x01010101u)
                        + dot4I8Packed(a.z, 0x01010101u) + dot4I8Packed(a.w, 0x01010101u);
                    sums[t] = fma(f32(dot_word(word, array<vec4<u32>, 1>(a), -ones)), scale, sums[t]);
                }
            }
        }
        // Lane t keeps the sum of token t; a team has at least eight lanes.
        var sum = 0.0;
        for (var t = 0u; t < TILE_Y; t += 1u) { sum = select(sum, team_sum_f32(sums[t], ids), lane == t); }
        let token = token0 + lane;
        if first < TILE_X && lane < TILE_Y && row < params.rows && token < params.tokens {
            let output = token * params.rows + row;
            let product = finished(exact_quotient(sum, x_scale[token]), bias_of(row));
            if params.add != 0u { y[output] = Y(f32(y[output]) + product); } else { y[output] = Y(product); }
        }
    }
}
