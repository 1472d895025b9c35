// The `k` largest logits of each run of TILE_X = THREADS · TURNS in each row of logits [rows, count]. One threadgroup per run; see
// wgsl/transformer/top_k.wgsl.
struct Params { uint count, k, finite; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void top_k(
    constant Params& params     [[buffer(0)]],
    device const float* logits  [[buffer(1)]],
    device float* top           [[buffer(2)]],
    device uint* top_ids        [[buffer(3)]],
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
        id[u] = i;
        key[u] = i < params.count ? to_key(logits[row + i]) : 0u;
    }
    write_winners(key, id, params.k, params.finite != 0, top, top_ids, group, groups, scratch, Ids{local, lane, subgroup});
}
