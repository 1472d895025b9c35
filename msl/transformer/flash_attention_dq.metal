// dq_i = scale·Σ_j P_ij·(dy_i·v_j - delta_i)·k_j with P_ij = e^(scale·q_i·k_j - lse_i); see wgsl/transformer/flash_attention_dq.wgsl.
struct Params { uint groups, tokens, dim, sharing, causal, add; float scale; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention_dq(
    constant Params& params    [[buffer(0)]],
    device const X* q          [[buffer(1)]],
    device const X* k          [[buffer(2)]],
    device const X* v          [[buffer(3)]],
    device const X* dy         [[buffer(4)]],
    device const float* lse    [[buffer(5)]],
    device const float* delta  [[buffer(6)]],
    device X* dq               [[buffer(7)]],
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
    device const X* queries = q + head * tokens * dim;
    device const X* keys = k + head / params.sharing * tokens * dim;
    device const X* values = v + head / params.sharing * tokens * dim;
    const uint first = row0 + local / 16u * 4u;
    float4 logarithm = float4(0.0f);
    float4 mean = float4(0.0f);
    for (uint r = 0; r < 4 && first + r < tokens; ++r) {
        logarithm[r] = lse[head * tokens + first + r];
        mean[r] = delta[head * tokens + first + r];
    }

    float4 low[4];
    float4 high[4];
    for (uint c = 0; c < 4; ++c) low[c] = high[c] = float4(0.0f);
    const uint end = params.causal != 0 ? min(tokens, row0 + ROWS) : tokens;
    for (uint column0 = 0; column0 < end; column0 += COLUMNS) {
        float4 s[2];
        float4 slopes[2];
        scores(queries, row0, keys, column0, tokens, dim, staged, local, s);
        scores(dy + head * tokens * dim, row0, values, column0, tokens, dim, staged, local, slopes);
        for (uint c = 0; c < 2; ++c) {
            const uint key = column0 + local % 16u + 16u * c;
            for (uint r = 0; r < 4; ++r) {
                const bool seen = sees(tokens, params.causal, first + r, key);
                const float weight = seen ? exp_negative(s[c][r] * params.scale - logarithm[r]) : 0.0f;
                slopes[c][r] = weight * (slopes[c][r] - mean[r]);
            }
        }
        put(slopes, weights, local);
        add_weighted(keys, column0, d0, tokens, dim, weights, staged, local, low);
        if (d0 + WIDTH < dim) add_weighted(keys, column0, d0 + WIDTH, tokens, dim, weights, staged, local, high);
    }
    write(dq + head * tokens * dim, row0, d0, tokens, dim, params.add, params.scale, low, local);
    write(dq + head * tokens * dim, row0, d0 + WIDTH, tokens, dim, params.add, params.scale, high, local);
}
