// Attention for training; see wgsl/transformer/flash_attention.wgsl. A threadgroup makes ROWS queries of a head.
struct Params { uint groups, tokens, dim, sharing, causal, add; float scale; };

struct Store {
    device X* y;
    threadgroup const float* totals;
    uint add;
    void operator()(uint row, uint at, float v) const { put_or_add(y, at, v / totals[row], add); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention(
    constant Params& params  [[buffer(0)]],
    device const X* q        [[buffer(1)]],
    device const X* k        [[buffer(2)]],
    device const X* v        [[buffer(3)]],
    device X* y              [[buffer(4)]],
    device float* lse        [[buffer(5)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float staged[STAGED];
    threadgroup float tiles[ROWS * PITCH];
    // Of each SIMD-group: what its rows are multiplied with, a diagonal matrix.
    threadgroup float diagonals[8 * ROWS];
    threadgroup float totals[ROWS];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const Ids ids = {local, lane, subgroup};
    const Strip own = strip_of(params.tokens, params.dim, index);
    const uint of_q = own.head * params.tokens * params.dim;
    const uint of_k = own.head / params.sharing * params.tokens * params.dim;
    const Matrix queries = {q + of_q, params.tokens, params.dim};
    const Matrix keys = {k + of_k, params.tokens, params.dim};
    const Matrix values = {v + of_k, params.tokens, params.dim};
    threadgroup float* tile = tiles + subgroup * 8u * PITCH;
    threadgroup float* diagonal = diagonals + subgroup * 64u;
    threadgroup float* scored = tile + lane / 4u * PITCH + lane % 4u;
    const uint row = own.row0 + subgroup * 8u + lane / 4u;

    simdgroup_float8x8 sums[2 * ACROSS];
    clear(sums);
    diagonal[lane] = 0.0f;
    diagonal[lane + 32u] = 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // The softmax so far: the row's largest score, and Σ e^(s - largest) of the lane's columns.
    float largest = -3.4028234e38f;
    float total = 0.0f;
    const uint end = params.causal != 0 ? min(params.tokens, own.row0 + ROWS) : params.tokens;
    for (uint column0 = 0; column0 < end; column0 += COLUMNS) {
        scores(queries, own.row0, keys, column0, staged, tile, ids);
        const float before = largest;
        // Of the lane's columns, those that the row sees.
        uint seen = 0;
        for (uint c = 0; c < OWN; ++c) {
            const uint column = column0 + lane % 4u + 4u * c;
            if (row < params.tokens && column < params.tokens && (params.causal == 0 || column <= row)) {
                seen = c + 1u;
                largest = max(largest, scored[4u * c] * params.scale);
            }
        }
        largest = max(largest, simd_shuffle_xor(largest, ushort(1)));
        largest = max(largest, simd_shuffle_xor(largest, ushort(2)));
        const float shrink = exp_negative(before - largest);
        total *= shrink;
        for (uint c = 0; c < OWN; ++c) {
            const float weight = c < seen ? exp_negative(scored[4u * c] * params.scale - largest) : 0.0f;
            scored[4u * c] = weight;
            total += weight;
        }
        if (lane % 4u == 0) diagonal[lane / 4u * 9u] = shrink;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 shrinks;
        simdgroup_load(shrinks, diagonal, 8);
        const simdgroup_float8x8 nothing = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint i = 0; i < 2u * ACROSS; ++i) simdgroup_multiply_accumulate(sums[i], shrinks, sums[i], nothing);
        add_all_weighted(tile, values, column0, own.d0, staged, sums, ids);
    }

    total += simd_shuffle_xor(total, ushort(1));
    total += simd_shuffle_xor(total, ushort(2));
    if (lane % 4u == 0) {
        totals[subgroup * 8u + lane / 4u] = total;
        if (row < params.tokens && own.d0 == 0) lse[own.head * params.tokens + row] = largest + log_positive(total);
    }
    write(sums, own, params.tokens, params.dim, staged, Store{y + of_q, totals + subgroup * 8u, params.add}, ids);
}
