// The `k` largest of a run of TILE_X = THREADS · TURNS logits, largest first, equal ones by the lower id. The kernel that includes this has
// `params.count`, `params.k`, `params.finite`, and the outputs top and top_ids [rows, runs, k].

// `key` and `id` are those of a thread's logits; a workgroup writes the winners of its run.
fn write_winners(key: ptr<function, array<u32, TURNS>>, id: ptr<function, array<u32, TURNS>>, group: Group, ids: Ids) {
    for (var round = 0u; round < params.k; round += 1u) {
        var best = 0u;
        for (var u = 0u; u < TURNS; u += 1u) { best = max(best, (*key)[u]); }
        best = group_max_by_reads_u32(best, ids);
        // The lowest id has the highest complement.
        var lowest = 0u;
        for (var u = 0u; u < TURNS; u += 1u) { if (*key)[u] == best { lowest = max(lowest, ~(*id)[u]); } }
        let winner = ~group_max_by_reads_u32(lowest, ids);
        for (var u = 0u; u < TURNS; u += 1u) { if (*key)[u] == best && (*id)[u] == winner { (*key)[u] = 0u; } }
        if ids.local == 0u {
            let output = (group.id.y * group.count.x + group.id.x) * params.k + round;
            top[output] = from_key(best);
            top_ids[output] = select(winner, NONE, best == NONE || best == 0u || (params.finite != 0u && !is_finite_key(best)));
        }
    }
}
