// The gradient of attention for q; see wgsl/transformer/flash_attention_dq.wgsl.
struct Params { uint groups, tokens, dim, sharing, causal, add; float scale; };

struct Store {
    device X* dq;
    float scale;
    uint add;
    void operator()(uint, uint at, float v) const { put_or_add(dq, at, scale * v, add); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention_dq(
    constant Params& params    [[buffer(0)]],
    device const X* q          [[buffer(1)]],
    device const X* k          [[buffer(2)]],
    device const X* v          [[buffer(3)]],
    device const X* dy         [[buffer(4)]],
    device const float* lse    [[buffer(5)]],
    device const float* delta  [[buffer(6)]],
    device X* dq               [[buffer(7)]],
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
    const uint of_q = own.head * params.tokens * params.dim;
    const uint of_k = own.head / params.sharing * params.tokens * params.dim;
    const Matrix queries = {q + of_q, params.tokens, params.dim};
    const Matrix slopes = {dy + of_q, params.tokens, params.dim};
    const Matrix keys = {k + of_k, params.tokens, params.dim};
    const Matrix values = {v + of_k, params.tokens, params.dim};
    threadgroup float* tile = tiles + subgroup * 8u * PITCH;
    threadgroup float* scored = tile + lane / 4u * PITCH + lane % 4u;
    const uint row = own.row0 + subgroup * 8u + lane / 4u;
    float logarithm = 0.0f;
    float mean = 0.0f;
    if (row < params.tokens) {
        logarithm = lse[own.head * params.tokens + row];
        mean = delta[own.head * params.tokens + row];
    }

    simdgroup_float8x8 sums[2 * ACROSS];
    clear(sums);
    const uint end = params.causal != 0 ? min(params.tokens, own.row0 + ROWS) : params.tokens;
    for (uint column0 = 0; column0 < end; column0 += COLUMNS) {
        scores(queries, own.row0, keys, column0, staged, tile, ids);
        float weights[OWN];
        for (uint c = 0; c < OWN; ++c) {
            const uint key = column0 + lane % 4u + 4u * c;
            const bool sees = row < params.tokens && key < params.tokens && (params.causal == 0 || key <= row);
            weights[c] = sees ? exp_negative(scored[4u * c] * params.scale - logarithm) : 0.0f;
        }
        scores(slopes, own.row0, values, column0, staged, tile, ids);
        for (uint c = 0; c < OWN; ++c) scored[4u * c] = weights[c] * (scored[4u * c] - mean);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        add_all_weighted(tile, keys, column0, own.d0, staged, sums, ids);
    }
    write(sums, own, params.tokens, params.dim, staged, Store{dq + of_q, params.scale, params.add}, ids);
}
