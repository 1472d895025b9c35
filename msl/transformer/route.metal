// The experts that each token uses, and their weights. One threadgroup per token; a thread has two experts. See wgsl/transformer/route.wgsl.
struct Params { uint tokens, experts, used, normalized; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void route(
    constant Params& params     [[buffer(0)]],
    device const float* logits  [[buffer(1)]],
    device uint* chosen         [[buffer(2)]],
    device float* weights       [[buffer(3)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]])
{
    threadgroup uint keys[2 * THREADS];
    // Of all experts, then of the used ones.
    threadgroup float powers[2 * THREADS];
    threadgroup float ranked[16];
    threadgroup float largest[1];
    const uint token = flat_group(group, groups);
    if (token >= params.tokens) return;
    float logit[2];
    for (uint u = 0; u < 2; ++u) {
        const uint expert = u * THREADS + local;
        logit[u] = expert < params.experts ? logits[token * params.experts + expert] : 0.0f;
        if (expert < params.experts) keys[expert] = to_key(logit[u]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint rank[2] = {0u, 0u};
    bool finite = true;
    for (uint i = 0; i < params.experts; ++i) {
        const uint key = keys[i];
        finite = finite && is_finite_key(key);
        for (uint u = 0; u < 2; ++u) {
            const uint expert = u * THREADS + local;
            const uint own = keys[min(expert, params.experts - 1u)];
            if (key > own || (key == own && i < expert)) rank[u] += 1u;
        }
    }
    for (uint u = 0; u < 2; ++u) {
        if (u * THREADS + local < params.experts && rank[u] == 0u) largest[0] = logit[u];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float power[2] = {0.0f, 0.0f};
    for (uint u = 0; u < 2; ++u) {
        const uint expert = u * THREADS + local;
        if (expert < params.experts) {
            power[u] = exp_negative(logit[u] - largest[0]);
            if (rank[u] < params.used) ranked[rank[u]] = power[u];
        }
        powers[expert] = power[u];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Halves are added, so that the order is the same on every device.
    for (uint size = THREADS; size > 0; size /= 2) {
        if (local < size) powers[local] += powers[local + size];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float total = powers[0];
    if (params.normalized != 0) {
        total = 0.0f;
        for (uint i = 0; i < params.used; ++i) total += ranked[i];
    }
    for (uint u = 0; u < 2; ++u) {
        const uint expert = u * THREADS + local;
        if (expert >= params.experts || rank[u] >= params.used) continue;
        const uint output = token * params.used + rank[u];
        chosen[output] = finite ? expert : NONE;
        weights[output] = as_type<float>(finite ? as_type<uint>(power[u] / total) : 0x7fc00000u);
    }
}
