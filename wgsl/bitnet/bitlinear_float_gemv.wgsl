// y[t, r] = Σ_k a[t, k]·Wq[r, k]·w_scale[r, group of k], on top of y if `add` is not 0, for few tokens t, whose activations are floats. A workgroup
// makes TILE_X rows × TILE_Y = 4 tokens, LANES lanes four of the rows: each takes every LANES-th word of them. The sixteen products of a word are ±x
// or 0, so exact. They are added in order, scaled, and added to what the lane has; lanes add up in a binary tree.
const LANES: u32 = 4u * THREADS / TILE_X;

// 2^`bits`
fn power(bits: i32) -> f32 { return bitcast<f32>(u32(127 + bits) << 23u); }

// The last bits of 2^23 as a float count its ones, so a masked field of a word, put there, is 2^23 + code·2^bit, and a subtraction, which is exact,
// makes it value·2^bit: no conversion, and a shift for eight weights. Quad f of a word has its codes at the bits 2f and 2f + 8 of both halves.
fn weights(word: u32, f: u32) -> vec4<f32> {
    let mask = vec4<u32>(0x003u, 0x300u, 0x003u, 0x300u) << vec4<u32>(2u * f);
    let fields = vec4<u32>(word, word, word >> 16u, word >> 16u) & mask;
    let ones = vec4<f32>(1.0, 256.0, 1.0, 256.0) * power(2 * i32(f));
    return bitcast<vec4<f32>>(fields | vec4<u32>(0x4b000000u)) - (vec4<f32>(8388608.0) + ones);
}

// Activations for `weights`: multiplied by 2^-bit, once for all rows.
fn activations(token: u32, word: u32, f: u32) -> vec4<f32> {
    let ones = vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625) * power(-2 * i32(f));
    return left_quad(0u, token, 16u * word + 4u * f) * ones;
}

fn dot_in_order(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 { return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum)))); }

// The products of a quad with four rows.
fn rows_dot(w: Block, x: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot_in_order(w.x, x, sum.x), dot_in_order(w.y, x, sum.y), dot_in_order(w.z, x, sum.z), dot_in_order(w.w, x, sum.w));
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
            of_word.x = rows_dot(quads, activations(token, word, f), of_word.x);
            if token + 1u < params.m { of_word.y = rows_dot(quads, activations(token + 1u, word, f), of_word.y); }
            if token + 2u < params.m { of_word.z = rows_dot(quads, activations(token + 2u, word, f), of_word.z); }
            if token + 3u < params.m { of_word.w = rows_dot(quads, activations(token + 3u, word, f), of_word.w); }
        }
        sum = Block(
            fma(of_word.x, scale, sum.x), fma(of_word.y, scale, sum.y), fma(of_word.z, scale, sum.z), fma(of_word.w, scale, sum.w),
        );
    }
    // Lane i writes row i % 4 of token i / 4.
    var own = over_lanes(sum.x, LANES, 1u, ids.local);
    if token + 1u < params.m {
        let second = over_lanes(sum.y, LANES, 1u, ids.local);
        own = select(own, second, lane / 4u == 1u);
    }
    if token + 2u < params.m {
        let third = over_lanes(sum.z, LANES, 1u, ids.local);
        own = select(own, third, lane / 4u == 2u);
    }
    if token + 3u < params.m {
        let fourth = over_lanes(sum.w, LANES, 1u, ids.local);
        own = select(own, fourth, lane / 4u == 3u);
    }
    if lane < 4u * TILE_Y { store(0u, token + lane / 4u, row + lane % 4u, own[lane % 4u]); }
}
