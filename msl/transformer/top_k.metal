// The `k` largest logits of every run of THREADS · TURNS, largest first, ties by the lower id; see wgsl/transformer/top_k.wgsl.
struct Params { uint count, k, named; };

#define NONE 0xffffffffu

static inline uint to_key(uint bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return NONE;
    return bits >= 0x80000000u ? ~bits : bits | 0x80000000u;
}
static inline float from_key(uint v) {
    if (v == NONE) v = 0xffc00000u;
    v = max(v, 0x007fffffu);
    return as_type<float>(v >= 0x80000000u ? v & 0x7fffffffu : ~v);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void top_k(
    constant Params& params        [[buffer(0)]],
    device const float* logits     [[buffer(1)]],
    device const uint* logit_ids   [[buffer(2)]],
    device float* top              [[buffer(3)]],
    device uint* top_ids           [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]],
    uint lane    [[thread_index_in_simdgroup]],
    uint simd    [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[32];
    const Ids ids = Ids{local, lane, simd};
    const uint row = group.y * params.count;
    uint key[TURNS];
    uint id[TURNS];
    for (uint u = 0; u < TURNS; ++u) {
        const uint i = group.x * TILE_X + u * THREADS + local;
        key[u] = 0;
        id[u] = NONE;
        if (i < params.count) {
            id[u] = params.named != 0 ? logit_ids[row + i] : i;
            key[u] = to_key(as_type<uint>(logits[row + i]));
            if (id[u] == NONE) {
                // A NaN, told from others by its place, or nothing.
                key[u] = key[u] == NONE ? NONE : 0u;
                id[u] = i;
            }
        }
    }
    for (uint round = 0; round < params.k; ++round) {
        uint best = 0;
        for (uint u = 0; u < TURNS; ++u) best = max(best, key[u]);
        best = group_max(best, scratch, ids);
        // The lowest id is the highest complement.
        uint lowest = 0;
        for (uint u = 0; u < TURNS; ++u) {
            if (key[u] == best) lowest = max(lowest, ~id[u]);
        }
        const uint winner = ~group_max(lowest, scratch, ids);
        for (uint u = 0; u < TURNS; ++u) {
            if (key[u] == best && id[u] == winner) key[u] = 0;
        }
        if (local == 0) {
            const uint place = (group.y * groups.x + group.x) * params.k + round;
            // A NaN has no name.
            top[place] = from_key(best);
            top_ids[place] = best == NONE || best == 0 ? NONE : winner;
        }
    }
}
