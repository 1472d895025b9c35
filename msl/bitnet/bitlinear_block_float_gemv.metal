// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, for few tokens t, whose
// activations are in block floating point, their quads by place: as wgsl/bitnet/bitlinear_block_float_gemv.wgsl, bit-identical. Codes are loaded STEP words at a
// time, 1 or 4. A part before says which matrix a row of x meets, and how a sum is stored (matrix_of_all.metal, matrix_of_expert.metal).

static inline uint4 load_codes(device const uint* codes, uint words, uint row, uint word) {
    if (STEP == 4) return *(device const uint4*)(codes + row * words + word);
    return uint4(codes[row * words + min(word, words - 1u)], 0u, 0u, 0u);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_block_float_gemv(
    constant Params& params      [[buffer(0)]],
    device const float4* x       [[buffer(1)]],
    device const uint* codes     [[buffer(2)]],
    device const float* w_scale  [[buffer(3)]],
    device Y* y                  [[buffer(4)]] EXPERTS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]])
{
    // What blocks give to four rows, by token. A place separates the lanes of one team, at least four, from the next.
    threadgroup float4 products[TILE_Y * PLACES];
    const uint lane = local % params.lanes, team = local / params.lanes, teams = THREADS / params.lanes;
    const uint row0 = group.x * 4u * teams;
    const uint token = group.y * TILE_Y;
    // Rows that do not exist are read as the last one, and not written.
    uint rows[4];
    for (uint r = 0; r < 4; ++r) rows[r] = FIRST_ROW(token) + min(row0 + 4u * team + r, params.n - 1u);
    // The output of a thread: a row of the threadgroup's and a token.
    const uint own_row = local % (4u * teams), own_token = local / (4u * teams);
    const uint own = own_token * PLACES + own_row / 4u * (params.lanes + 1u);
    float total = 0.0f;
    for (uint first = 0; first < params.blocks; first += params.lanes) {
        const uint block = first + lane;
        if (block < params.blocks) {
            float4 scale;
            for (uint r = 0; r < 4; ++r) scale[r] = w_scale[rows[r] * params.groups + block / params.group_blocks];
            float4 sum[TILE_Y];
            for (uint t = 0; t < TILE_Y; ++t) sum[t] = float4(0.0f);
            for (uint word = 0; word < params.block_words; word += STEP) {
                uint4 of_rows[4];
                for (uint r = 0; r < 4; ++r) of_rows[r] = load_codes(codes, params.words, rows[r], block * params.block_words + word);
                for (uint i = 0; i < STEP; ++i) {
                    uint even[4], odd[4];
                    for (uint r = 0; r < 4; ++r) {
                        even[r] = biased(of_rows[r][i]);
                        odd[r] = biased(of_rows[r][i] >> 8);
                    }
                    for (uint f = 0; f < 4; ++f) {
                        float4 w[4];
                        for (uint r = 0; r < 4; ++r) w[r] = weights(even[r], odd[r], f);
                        for (uint t = 0; t < TILE_Y; ++t) {
                            // The first token there is.
                            if (t > 0 && token + t >= params.m) continue;
                            const uint quad = INPUT_ROW(token + t) * 4u * params.block_words + 4u * (word + i) + f;
                            const float4 v = x[quad * params.blocks + block];
                            for (uint r = 0; r < 4; ++r) sum[t][r] = dot_in_order(w[r], v, sum[t][r]);
                        }
                    }
                }
            }
            for (uint t = 0; t < TILE_Y; ++t) products[t * PLACES + team * (params.lanes + 1u) + lane] = sum[t] * BLOCK_SCALE(scale);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (own_token < TILE_Y) {
            for (uint i = 0; i < min(params.lanes, params.blocks - first); ++i) total += products[own + i][own_row % 4u];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (own_token >= TILE_Y || token + own_token >= params.m || row0 + own_row >= params.n) return;
    const uint at = (token + own_token) * params.n + row0 + own_row;
    const float product = STORED(total, token + own_token, row0 + own_row);
    y[at] = Y(params.add != 0 ? float(y[at]) + product : product);
}
