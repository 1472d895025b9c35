// y[t, r] = Σ_k a[t, k]·Wq[r, k]·w_scale[r, group of k], on top of y if `add` is not 0, for few tokens t, whose activations are floats. A workgroup
// makes TILE_X rows × TILE_Y tokens, 1 or 4, LANES lanes four of the rows: each takes every LANES-th word of them. The sixteen products of a word are
// ±x or 0, so exact. They are added in order, scaled, and added to what the lane has; lanes are added in their order: the same for any number of tokens.
const LANES: u32 = 4u * THREADS / TILE_X;

// What lanes have of four rows, by token.
var<workgroup> of_lanes: array<vec4<f32>, TILE_Y * THREADS>;

// Adds the products of a quad of four rows and of four tokens, of those that there are.
fn of_tokens(w: Block, token: u32, at: u32, sum: Block) -> Block {
    var all = sum;
    if TILE_Y == 1u {
        all.x = rows_dot(w, left_quad(0u, token, at), all.x);
        return all;
    }
    if token < params.m { all.x = rows_dot(w, left_quad(0u, token, at), all.x); }
    if token + 1u < params.m { all.y = rows_dot(w, left_quad(0u, token + 1u, at), all.y); }
    if token + 2u < params.m { all.z = rows_dot(w, left_quad(0u, token + 2u, at), all.z); }
    if token + 3u < params.m { all.w = rows_dot(w, left_quad(0u, token + 3u, at), all.w); }
    return all;
}

fn scaled(v: Block, scale: vec4<f32>, sum: Block) -> Block {
    return Block(fma(v.x, scale, sum.x), fma(v.y, scale, sum.y), fma(v.z, scale, sum.z), fma(v.w, scale, sum.w));
}

fn leave(local: u32, sum: Block) {
    of_lanes[local] = sum.x;
    if TILE_Y == 1u { return; }
    of_lanes[THREADS + local] = sum.y;
    of_lanes[2u * THREADS + local] = sum.z;
    of_lanes[3u * THREADS + local] = sum.w;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_float_gemv(group: Group, ids: Ids) {
    let lane = ids.local % LANES;
    let row = group.id.x * TILE_X + 4u * (ids.local / LANES);
    let token = group.id.y * TILE_Y;
    // Tokens of four rows each.
    var sum = Block();
    // Rows that do not exist are read as the last one, and not written.
    let last = params.n - 1u;
    let rows = vec4<u32>(min(row, last), min(row + 1u, last), min(row + 2u, last), min(row + 3u, last));
    let starts = rows * params.words;
    for (var word = lane; 16u * word < params.k; word += LANES) {
        let w = vec4<u32>(codes[starts.x + word], codes[starts.y + word], codes[starts.z + word], codes[starts.w + word]);
        let at = rows * params.groups + vec4<u32>(word / params.group_words);
        let scale = vec4<f32>(w_scale[at.x], w_scale[at.y], w_scale[at.z], w_scale[at.w]);
        var of_word = Block();
        for (var f = 0u; f < 4u; f += 1u) {
            let quads = Block(weights(w.x, f), weights(w.y, f), weights(w.z, f), weights(w.w, f));
            of_word = of_tokens(quads, token, 16u * word + 4u * f, of_word);
        }
        sum = scaled(of_word, scale, sum);
    }
    leave(ids.local, sum);
    workgroupBarrier();
    // Lane i adds up row i % 4 of token i / 4.
    if lane < 4u * TILE_Y {
        let first = lane / 4u * THREADS + ids.local - lane;
        var all = 0.0;
        for (var i = 0u; i < LANES; i += 1u) { all += of_lanes[first + i][lane % 4u]; }
        store(0u, token + lane / 4u, row + lane % 4u, all);
    }
}
