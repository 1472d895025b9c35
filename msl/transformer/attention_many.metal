// Causal attention of many new tokens, after rope.metal: a threadgroup goes through all shares that its TILE_X rows see. Shapes:
// wgsl/transformer/attention_many.wgsl.
struct Query {
    device const float* qkv;
    uint head_dim;

    float4 operator()(uint head, uint quad) const {
        float4 v = float4(0.0f);
        for (uint j = 0; j < 4; ++j) {
            const uint d = 4u * quad + j;
            if (d < head_dim) v[j] = qkv[head * head_dim + d];
        }
        return v;
    }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention_many(
    constant Params& params       [[buffer(0)]],
    device const uint2* runs      [[buffer(1)]],
    device const float* qkv       [[buffer(2)]],
    device const C4* keys         [[buffer(3)]],
    device const C4* values       [[buffer(4)]],
    device float* y               [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float4 queries[TILE_X * MAX_QUADS];
    threadgroup float4 weights[TILE_X * 16];
    // The grid has a threadgroup for every COLUMNS of a row; here, the first makes all of them.
    const uint strips = (params.head_dim + COLUMNS - 1u) / COLUMNS;
    if (group.y % strips != 0u) return;
    const Rows rows = rows_of(params, runs, group.x, group.y / strips, group.z);
    load_queries(params, rows, Query{qkv, params.head_dim}, queries, local);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Merged so_far[QUADS];
    for (uint q = 0; q < QUADS; ++q) so_far[q] = Merged{LOWEST, 0.0f, float4(0.0f)};
    for (uint share = 0; share * SPAN < rows.visible; ++share) {
        const Share found = attend(params, rows, keys, values, share, queries, weights, local);
        for (uint q = 0; q < QUADS; ++q) so_far[q] = merged(so_far[q], found.largest, found.total, found.sum[q]);
    }
    const uint row = rows.first + local % TILE_X;
    if (row >= rows.count) return;
    device float* head = y + head_of(rows, row, params.heads) * params.head_dim;
    for (uint q = 0; q < QUADS; ++q) {
        put(head, params.head_dim, local / 8u + q * (THREADS / 8u), quotient(so_far[q]), params.add != 0u);
    }
}
