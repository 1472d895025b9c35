// The `k` largest of a run of TILE_X = THREADS · TURNS logits; see wgsl/transformer/top_k_run.wgsl.

// `key` and `id` are those of a thread's logits; a threadgroup writes the winners of its run.
static inline void write_winners(thread uint* key, thread const uint* id, uint k, bool finite, device float* top, device uint* top_ids, uint3 group,
                                 uint3 groups, threadgroup uint* scratch, Ids ids)
{
    for (uint round = 0; round < k; ++round) {
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
        if (ids.local == 0) {
            const uint output = (group.y * groups.x + group.x) * k + round;
            top[output] = from_key(best);
            top_ids[output] = best == NONE || best == 0 || (finite && !is_finite_key(best)) ? NONE : winner;
        }
    }
}
