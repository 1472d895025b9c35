// The `k` largest among the winners of top_k.metal; see wgsl/transformer/top_k_merge.wgsl.
struct Params { uint count, k, finite; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void top_k_merge(
    constant Params& params        [[buffer(0)]],
    device const float* logits     [[buffer(1)]],
    device const uint* logit_ids   [[buffer(2)]],
    device float* top              [[buffer(3)]],
    device uint* top_ids           [[buffer(4)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[32];
    const uint row = group.y * params.count;
    uint key[TURNS];
    uint id[TURNS];
    for (uint u = 0; u < TURNS; ++u) {
        const uint i = group.x * TILE_X + u * THREADS + local;
        key[u] = 0;
        id[u] = NONE;
        if (i < params.count) {
            id[u] = logit_ids[row + i];
            key[u] = to_key(logits[row + i]);
            if (id[u] == NONE) {
                // A NaN, or no logit. Its index tells it from others.
                key[u] = key[u] == NONE ? NONE : 0u;
                id[u] = i;
            }
        }
    }
    write_winners(key, id, params.k, params.finite != 0, top, top_ids, group, groups, scratch, Ids{local, lane, subgroup});
}
