// Causal attention of few new tokens to all cached positions. A threadgroup takes TILE_X rows of one key head and one share of the positions. Shapes,
// and what becomes of several shares: wgsl/transformer/attention_few.wgsl.
struct HeadQuad {
    constant Params& params;
    device const float* qkv;
    device const float2* angles;

    float4 operator()(uint head, uint quad, bool rotates, uint position) const {
        const uint middle = params.head_dim / 2u;
        const uint start = head * params.head_dim;
        float4 v = float4(0.0f);
        for (uint j = 0; j < 4; ++j) {
            const uint d = 4u * quad + j;
            if (d < params.head_dim) {
                v[j] = qkv[start + d];
                if (rotates) {
                    const bool low = d < middle;
                    const float other = qkv[start + (low ? d + middle : d - middle)];
                    v[j] = turned(v[j], low ? -other : other, angles[position * middle + (low ? d : d - middle)]);
                }
            }
        }
        return v;
    }
};

struct Query {
    HeadQuad head_quad;
    bool rotates;
    uint position;
    float4 operator()(uint head, uint quad) const { return head_quad(head, quad, rotates, position); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention_few(
    constant Params& params       [[buffer(0)]],
    device const uint2* runs      [[buffer(1)]],
    device const float* qkv       [[buffer(2)]],
    device const float2* angles   [[buffer(3)]],
    device C4* keys               [[buffer(4)]],
    device C4* values             [[buffer(5)]],
    device float* y               [[buffer(6)]],
    device float4* x              [[buffer(7)]],
    device float2* x_weight       [[buffer(8)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float4 queries[TILE_X * MAX_QUADS];
    threadgroup float4 weights[TILE_X * 16];
    const uint share = group.y / params.kv_heads;
    const Rows rows = rows_of(params, runs, group.x, group.y % params.kv_heads, group.z);
    if (share * SPAN >= rows.visible || share < rows.start / SPAN) return;
    const bool rotates = params.rotate != 0u;
    const HeadQuad head_quad = {params, qkv, angles};
    load_queries(params, rows, Query{head_quad, rotates, min(rows.past, params.capacity - 1u)}, queries, local);
    if (rotates && share == rows.past / SPAN && rows.past < params.capacity) {
        // The key and the value of the sequence's one new token.
        const uint cache_row = rows.sequence * params.kv_heads + rows.kv_head;
        const uint key = rows.token * (params.heads + 2u * params.kv_heads) + params.heads + rows.kv_head;
        for (uint quad = local; quad < rows.quads; quad += THREADS) {
            keys[(cache_row * rows.quads + quad) * params.capacity + rows.past] = C4(head_quad(key, quad, true, rows.past));
            values[(cache_row * params.capacity + rows.past) * rows.quads + quad] =
                C4(head_quad(key + params.kv_heads, quad, false, rows.past));
        }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    const Share found = attend(params, rows, keys, values, share, queries, weights, local);
    const uint row = rows.first + local % TILE_X;
    // Where a tile has four rows, eight threads know each twice.
    if (row >= rows.count || local % 8u >= TILE_X) return;
    const uint output = head_of(rows, row, params.heads);
    const bool single = groups.y == params.kv_heads;
    const uint all = share * params.heads * params.run * groups.z + output;
    for (uint q = 0; q < QUADS; ++q) {
        const uint quad = local / 8u + q * (THREADS / 8u);
        if (quad < rows.quads) {
            if (single) {
                const Merged whole = merged(Merged{LOWEST, 0.0f, float4(0.0f)}, found.largest, found.total, found.sum[q]);
                put(y + output * params.head_dim, params.head_dim, quad, quotient(whole), params.add != 0u);
            } else {
                x[all * rows.quads + quad] = found.sum[q];
            }
        }
    }
    if (!single && local < 8u) x_weight[all] = float2(found.largest, found.total);
}
