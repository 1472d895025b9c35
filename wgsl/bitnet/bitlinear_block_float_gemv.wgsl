// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, for few tokens t, whose
// activations are in block floating point (block_float_store.wgsl), their quads by place. A block's sum is exact; it is scaled, which rounds, and these are
// added in order: bit-identical in every kernel and on every device. A workgroup makes four rows of TILE_Y tokens by `lanes` lanes each, which take every
// `lanes`-th block. By way of workgroup memory, a product and the sum that it goes to are never fused.
// Parts before load STEP words of codes at once (block_float_words.wgsl, block_float_quads.wgsl), and say which matrix a row of x meets, and how a
// sum is stored (matrix_of_all.wgsl, matrix_of_expert.wgsl).
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

// What blocks give to four rows, by token. A place separates the lanes of one team, at least four, from the next.
var<workgroup> products: array<vec4<f32>, TILE_Y * PLACES>;

fn activations(token: u32, quad: u32, block: u32) -> vec4<f32> {
    return x[(input_row(token) * 4u * params.block_words + quad) * params.blocks + block];
}

// Adds the products of a quad of four rows and of four tokens, of those that there are.
fn of_tokens(w: Block, token: u32, quad: u32, block: u32, sum: Block) -> Block {
    var all = sum;
    if TILE_Y == 1u {
        all.x = rows_dot(w, activations(token, quad, block), all.x);
        return all;
    }
    if token < params.m { all.x = rows_dot(w, activations(token, quad, block), all.x); }
    if token + 1u < params.m { all.y = rows_dot(w, activations(token + 1u, quad, block), all.y); }
    if token + 2u < params.m { all.z = rows_dot(w, activations(token + 2u, quad, block), all.z); }
    if token + 3u < params.m { all.w = rows_dot(w, activations(token + 3u, quad, block), all.w); }
    return all;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_block_float_gemv(group: Group, ids: Ids) {
    let lane = ids.local % params.lanes;
    let team = ids.local / params.lanes;
    let teams = THREADS / params.lanes;
    let row0 = group.id.x * 4u * teams;
    let row = row0 + 4u * team;
    let token = group.id.y * TILE_Y;
    // Rows that do not exist are read as the last one, and not written.
    let last = params.n - 1u;
    let rows = vec4<u32>(min(row, last), min(row + 1u, last), min(row + 2u, last), min(row + 3u, last)) + vec4<u32>(first_row(token));
    let place = team * (params.lanes + 1u) + lane;
    // The output of a thread: a row of the workgroup's and a token.
    let own_row = ids.local % (4u * teams);
    let own_token = ids.local / (4u * teams);
    let own = own_token * PLACES + own_row / 4u * (params.lanes + 1u);
    var total = 0.0;
    for (var first = 0u; first < params.blocks; first += params.lanes) {
        let block = first + lane;
        if block < params.blocks {
            let of_group = rows * params.groups + vec4<u32>(block / params.group_blocks);
            let scale = block_scale(vec4<f32>(w_scale[of_group.x], w_scale[of_group.y], w_scale[of_group.z], w_scale[of_group.w]));
            // Tokens of four rows each.
            var sum = Block();
            for (var word = 0u; word < params.block_words; word += STEP) {
                let at = block * params.block_words + word;
                let a = load_codes(rows.x, at);
                let b = load_codes(rows.y, at);
                let c = load_codes(rows.z, at);
                let d = load_codes(rows.w, at);
                for (var i = 0u; i < STEP; i += 1u) {
                    for (var f = 0u; f < 4u; f += 1u) {
                        let w = Block(weights(a[i], f), weights(b[i], f), weights(c[i], f), weights(d[i], f));
                        sum = of_tokens(w, token, 4u * (word + i) + f, block, sum);
                    }
                }
            }
            products[place] = sum.x * scale;
            if TILE_Y > 1u {
                products[place + PLACES] = sum.y * scale;
                products[place + 2u * PLACES] = sum.z * scale;
                products[place + 3u * PLACES] = sum.w * scale;
            }
        }
        workgroupBarrier();
        if own_token < TILE_Y {
            for (var i = 0u; i < min(params.lanes, params.blocks - first); i += 1u) { total += products[own + i][own_row % 4u]; }
        }
        workgroupBarrier();
    }
    if own_token < TILE_Y && token + own_token < params.m && row0 + own_row < params.n {
        let at = (token + own_token) * params.n + row0 + own_row;
        let product = stored(total, token + own_token, row0 + own_row);
        if params.add != 0u { y[at] = Y(f32(y[at]) + product); } else { y[at] = Y(product); }
    }
}
