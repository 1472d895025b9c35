// The gradients of attention for k and v; see wgsl/transformer/flash_attention_dkdv.wgsl. A threadgroup makes ROWS keys of a key head.
struct Params { uint groups, tokens, dim, sharing, causal, add_k, add_v; float scale; };

struct Store {
    device X* to;
    float scale;
    uint add;
    void operator()(uint, uint at, float v) const { put_or_add(to, at, scale * v, add); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention_dkdv(
    constant Params& params    [[buffer(0)]],
    device const X* q          [[buffer(1)]],
    device const X* k          [[buffer(2)]],
    device const X* v          [[buffer(3)]],
    device const X* dy         [[buffer(4)]],
    device const float* lse    [[buffer(5)]],
    device const float* delta  [[buffer(6)]],
    device X* dk               [[buffer(7)]],
    device X* dv               [[buffer(8)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float staged[STAGED];
    threadgroup float tiles[ROWS * PITCH];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const Ids ids = {local, lane, subgroup};
    const Strip own = strip_of(params.tokens, params.dim, index);
    const uint of_k = own.head * params.tokens * params.dim;
    const Matrix keys = {k + of_k, params.tokens, params.dim};
    const Matrix values = {v + of_k, params.tokens, params.dim};
    threadgroup float* tile = tiles + subgroup * 8u * PITCH;
    threadgroup float* scored = tile + lane / 4u * PITCH + lane % 4u;
    const uint row = own.row0 + subgroup * 8u + lane / 4u;

    simdgroup_float8x8 key_sums[2 * ACROSS];
    simdgroup_float8x8 value_sums[2 * ACROSS];
    clear(key_sums);
    clear(value_sums);
    for (uint h = own.head * params.sharing; h < (own.head + 1u) * params.sharing; ++h) {
        const uint of_q = h * params.tokens * params.dim;
        const Matrix queries = {q + of_q, params.tokens, params.dim};
        const Matrix slopes = {dy + of_q, params.tokens, params.dim};
        // Queries before a key do not see it.
        for (uint column0 = params.causal != 0 ? own.row0 : 0u; column0 < params.tokens; column0 += COLUMNS) {
            scores(keys, own.row0, queries, column0, staged, tile, ids);
            float weights[OWN];
            for (uint c = 0; c < OWN; ++c) {
                const uint query = column0 + lane % 4u + 4u * c;
                weights[c] = 0.0f;
                if (row < params.tokens && query < params.tokens && (params.causal == 0 || row <= query)) {
                    weights[c] = exp_negative(scored[4u * c] * params.scale - lse[h * params.tokens + query]);
                }
                scored[4u * c] = weights[c];
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            add_all_weighted(tile, slopes, column0, own.d0, staged, value_sums, ids);
            scores(values, own.row0, slopes, column0, staged, tile, ids);
            for (uint c = 0; c < OWN; ++c) {
                const uint query = column0 + lane % 4u + 4u * c;
                const float mean = query < params.tokens ? delta[h * params.tokens + query] : 0.0f;
                scored[4u * c] = weights[c] * (scored[4u * c] - mean);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            add_all_weighted(tile, queries, column0, own.d0, staged, key_sums, ids);
        }
    }
    write(key_sums, own, params.tokens, params.dim, staged, Store{dk + of_k, params.scale, params.add_k}, ids);
    write(value_sums, own, params.tokens, params.dim, staged, Store{dv + of_k, 1.0f, params.add_v}, ids);
}
