// The `k` largest logits of each run of TILE_X = THREADS · TURNS in each row of logits [rows, count], largest first, equal ones by the lower id. One
// threadgroup per run. What ids are, and what becomes of NaNs: wgsl/transformer/top_k.wgsl.
struct Params { uint count, k, named; };

#define NONE 0xffffffffu

// Maps floats to unsigned integers in the same order, every NaN to NONE, the largest. 0 stands for no logit; back from a key, it is -infinity.
static inline uint to_key(float v) {
    const uint bits = as_type<uint>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return NONE;
    return bits >= 0x80000000u ? ~bits : bits | 0x80000000u;
}
static inline float from_key(uint key) {
    const uint v = max(key == NONE ? 0xffc00000u : key, 0x007fffffu);
    return as_type<float>(v >= 0x80000000u ? v & 0x7fffffffu : ~v);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void top_k(
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
    const Ids ids = Ids{local, lane, subgroup};
    const uint row = group.y * params.count;
    uint key[TURNS];
    uint id[TURNS];
    for (uint u = 0; u < TURNS; ++u) {
        const uint i = group.x * TILE_X + u * THREADS + local;
        key[u] = 0;
        id[u] = NONE;
        if (i < params.count) {
            id[u] = params.named != 0 ? logit_ids[row + i] : i;
            key[u] = to_key(logits[row + i]);
            if (id[u] == NONE) {
                // A winner of the first pass that was a NaN, or no logit. Its index tells it from others.
                key[u] = key[u] == NONE ? NONE : 0u;
                id[u] = i;
            }
        }
    }
    for (uint round = 0; round < params.k; ++round) {
        uint best = 0;
        for (uint u = 0; u < TURNS; ++u) best = max(best, key[u]);
        best = group_max_u32(best, scratch, ids);
        // The lowest id has the highest complement.
        uint lowest = 0;
        for (uint u = 0; u < TURNS; ++u) {
            if (key[u] == best) lowest = max(lowest, ~id[u]);
        }
        const uint winner = ~group_max_u32(lowest, scratch, ids);
        for (uint u = 0; u < TURNS; ++u) {
            if (key[u] == best && id[u] == winner) key[u] = 0;
        }
        if (local == 0) {
            const uint output = (group.y * groups.x + group.x) * params.k + round;
            top[output] = from_key(best);
            top_ids[output] = best == NONE || best == 0 ? NONE : winner;
        }
    }
}
