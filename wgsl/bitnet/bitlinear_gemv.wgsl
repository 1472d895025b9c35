// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · (w_scale[r] / x_scale[t]) for few tokens t. A team of lanes makes ROWS rows × TOKENS tokens: each
// lane takes every lanes-th group of words of the rows and the activations that belong to it. How many words a group has and how a word is
// multiplied is a part of its own (dot_*).
struct Params { rows: u32, tokens: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<Words>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_gemv(ids: Ids) {
    let t = team(ids);
    let token0 = ids.group.y * TOKENS;
    let groups = params.words / WORDS;
    for (var block = t.index * ROWS; block < TILE_X; block += t.count * ROWS) {
        let row0 = ids.group.x * TILE_X + block;
        // Lane r scales and writes row r. Its scale is asked for early, to be there when the sums are.
        let row = row0 + t.lane;
        let scale = w_scale[min(row, params.rows - 1u)];
        // Rows and tokens that do not exist are read as the last one, and not written.
        var row_start: array<u32, ROWS>;
        for (var r = 0u; r < ROWS; r += 1u) { row_start[r] = min(row0 + r, params.rows - 1u) * groups; }
        var x_start: array<u32, TOKENS>;
        for (var j = 0u; j < TOKENS; j += 1u) { x_start[j] = min(token0 + j, params.tokens - 1u) * PLANES * params.words; }

        var acc: array<Acc, ROWS * TOKENS>;
        for (var i = t.lane; i < groups; i += t.lanes) {
            var w: array<Words, ROWS>;
            for (var r = 0u; r < ROWS; r += 1u) { w[r] = codes[row_start[r] + i]; }
            for (var j = 0u; j < TOKENS; j += 1u) {
                for (var c = 0u; c < WORDS; c += 1u) {
                    for (var p = 0u; p < PLANES; p += 1u) {
                        let a = x[x_start[j] + p * params.words + i * WORDS + c];
                        for (var r = 0u; r < ROWS; r += 1u) { acc[j * ROWS + r] = dot_plane(word(w[r], c), p, a, acc[j * ROWS + r]); }
                    }
                }
            }
        }

        for (var j = 0u; j < TOKENS; j += 1u) {
            var sum = Acc(0);
            for (var r = 0u; r < ROWS; r += 1u) {
                let total = team_sum(acc[j * ROWS + r], ids);
                if t.lane == r { sum = total; }
            }
            let token = token0 + j;
            if t.lane < ROWS && row < params.rows && token < params.tokens {
                y[token * params.rows + row] = Y(finish(sum, x_sum[token]) * exact_quotient(scale, x_scale[token]));
            }
        }
    }
}
