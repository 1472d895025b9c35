// dv_j = Σ_i P_ij·dy_i and dk_j = scale·Σ_i P_ij·(dy_i·v_j - delta_i)·q_i, over the queries of all heads that share a key head; see
// wgsl/transformer/flash_attention_dkdv.wgsl.
struct Params { uint groups, tokens, dim, sharing, causal, add_k, add_v; float scale; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention_dkdv(
    constant Params& params    [[buffer(0)]],
    device const X* q          [[buffer(1)]],
    device const X* k          [[buffer(2)]],
    device const X* v          [[buffer(3)]],
    device const X* dy         [[buffer(4)]],
    device const float* lse    [[buffer(5)]],
    device const float* delta  [[buffer(6)]],
    device X* dk               [[buffer(7)]],
    device X* dv               [[buffer(8)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float staged[DEPTH * SLICE];
    threadgroup float weights[COLUMNS * PITCH];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const uint tokens = params.tokens;
    const uint dim = params.dim;
    const uint tiles = (tokens + ROWS - 1u) / ROWS;
    const uint strips = (dim + 2u * WIDTH - 1u) / (2u * WIDTH);
    const uint head = index / (tiles * strips);
    const uint row0 = index / strips % tiles * ROWS;
    const uint d0 = index % strips * (2u * WIDTH);
    device const X* keys = k + head * tokens * dim;
    device const X* values = v + head * tokens * dim;
    const uint first = row0 + local / 16u * 4u;

    float4 low_k[4];
    float4 high_k[4];
    float4 low_v[4];
    float4 high_v[4];
    for (uint c = 0; c < 4; ++c) low_k[c] = high_k[c] = low_v[c] = high_v[c] = float4(0.0f);
    for (uint h = head * params.sharing; h < (head + 1u) * params.sharing; ++h) {
        device const X* queries = q + h * tokens * dim;
        device const X* of_dy = dy + h * tokens * dim;
        // Queries before a key do not see it.
        for (uint column0 = params.causal != 0 ? row0 : 0u; column0 < tokens; column0 += COLUMNS) {
            float4 chances[2];
            float4 slopes[2];
            scores(keys, row0, queries, column0, tokens, dim, staged, local, chances);
            scores(values, row0, of_dy, column0, tokens, dim, staged, local, slopes);
            for (uint c = 0; c < 2; ++c) {
                const uint query = column0 + local % 16u + 16u * c;
                const float logarithm = query < tokens ? lse[h * tokens + query] : 0.0f;
                const float mean = query < tokens ? delta[h * tokens + query] : 0.0f;
                for (uint r = 0; r < 4; ++r) {
                    const bool seen = sees(tokens, params.causal, query, first + r);
                    const float weight = seen ? exp_negative(chances[c][r] * params.scale - logarithm) : 0.0f;
                    chances[c][r] = weight;
                    slopes[c][r] = weight * (slopes[c][r] - mean);
                }
            }
            put(chances, weights, local);
            add_weighted(of_dy, column0, d0, tokens, dim, weights, staged, local, low_v);
            if (d0 + WIDTH < dim) add_weighted(of_dy, column0, d0 + WIDTH, tokens, dim, weights, staged, local, high_v);
            put(slopes, weights, local);
            add_weighted(queries, column0, d0, tokens, dim, weights, staged, local, low_k);
            if (d0 + WIDTH < dim) add_weighted(queries, column0, d0 + WIDTH, tokens, dim, weights, staged, local, high_k);
        }
    }
    write(dk + head * tokens * dim, row0, d0, tokens, dim, params.add_k, params.scale, low_k, local);
    write(dk + head * tokens * dim, row0, d0 + WIDTH, tokens, dim, params.add_k, params.scale, high_k, local);
    write(dv + head * tokens * dim, row0, d0, tokens, dim, params.add_v, 1.0f, low_v, local);
    write(dv + head * tokens * dim, row0, d0 + WIDTH, tokens, dim, params.add_v, 1.0f, high_v, local);
}
