// Causal attention of the `run` new tokens of each sequence to all cached positions: y = Σ_p e^(s_p)·values[p] / Σ_p e^(s_p) with s_p =
// `scale`·q·keys[p], by online softmax. A threadgroup takes TILE_X rows of one key head and one of `splits` shares of the positions. What rows are,
// shapes, and how the shares are combined: wgsl/transformer/attention.wgsl.
struct Params { uint run, sequence, heads, kv_heads, head_dim, capacity, splits; float scale; };

// Below every score. Finite, since some compilers assume that infinities do not occur.
#define LOWEST (-1e30f)

// Maps floats to unsigned integers in the same order, and back, since group_max_u32 takes those.
static inline uint to_ordered(float v) {
    const uint bits = as_type<uint>(v);
    return bits >= 0x80000000u ? ~bits : bits | 0x80000000u;
}
static inline float from_ordered(uint v) { return as_type<float>(v >= 0x80000000u ? v & 0x7fffffffu : ~v); }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention(
    constant Params& params        [[buffer(0)]],
    device const uint* positions   [[buffer(1)]],
    device const float* qkv        [[buffer(2)]],
    device const C4* keys          [[buffer(3)]],
    device const C4* values        [[buffer(4)]],
    device float* y                [[buffer(5)]],
    device float2* y_weight        [[buffer(6)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[32];
    threadgroup float4 queries[TILE_X * MAX_QUADS];
    threadgroup float weights[TILE_X * THREADS];
    threadgroup float4 shares[THREADS];
    const Ids ids = Ids{local, lane, subgroup};
    const uint sharing = params.heads / params.kv_heads;
    const uint quads = (params.head_dim + 3u) / 4u;
    const uint row_length = (params.heads + 2u * params.kv_heads) * params.head_dim;
    const uint kv_head = group.y % params.kv_heads;
    const uint split = group.y / params.kv_heads;
    const uint sequence = params.sequence + group.z;
    const uint row0 = group.x * TILE_X;
    const uint rows = params.run * sharing;
    const uint past = positions[sequence];

    for (uint i = local; i < TILE_X * quads; i += THREADS) {
        const uint row = row0 + i / quads;
        const uint start = (group.z * params.run + row / sharing) * row_length + (kv_head * sharing + row % sharing) * params.head_dim;
        float4 q = float4(0.0f);
        for (uint j = 0; j < 4; ++j) {
            const uint d = i % quads * 4u + j;
            if (row < rows && d < params.head_dim) q[j] = qkv[start + d] * params.scale;
        }
        queries[i] = q;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // The positions that the rows may see, and this threadgroup's share of them: whole tiles of THREADS positions.
    const uint visible = min(past + (min(row0 + TILE_X, rows) - 1u) / sharing + 1u, params.capacity);
    const uint share = ((visible + THREADS - 1u) / THREADS + params.splits - 1u) / params.splits * THREADS;
    const uint end = min(visible, (split + 1u) * share);

    // Values are added by one thread per four elements of the head and part of the positions, in as many parts as there are threads for.
    const uint quad = local % quads;
    const uint part = local / quads;
    const uint parts = THREADS / quads;
    const uint key_row = (sequence * params.kv_heads + kv_head) * quads;
    const uint value_row = (sequence * params.kv_heads + kv_head) * params.capacity;
    float largest[TILE_X];
    float total[TILE_X];
    float4 sum[TILE_X];
    for (uint r = 0; r < TILE_X; ++r) {
        largest[r] = LOWEST;
        total[r] = 0.0f;
        sum[r] = float4(0.0f);
    }
    for (uint tile = split * share; tile < end; tile += THREADS) {
        const uint position = tile + local;
        float score[TILE_X];
        for (uint r = 0; r < TILE_X; ++r) score[r] = 0.0f;
        if (position < end) {
            for (uint d = 0; d < quads; ++d) {
                const float4 k = float4(keys[(key_row + d) * params.capacity + position]);
                for (uint r = 0; r < TILE_X; ++r) score[r] += dot(queries[r * quads + d], k);
            }
        }
        for (uint r = 0; r < TILE_X; ++r) {
            const bool seen = position < end && position <= past + (row0 + r) / sharing;
            const float top = max(largest[r], from_ordered(group_max_u32(to_ordered(seen ? score[r] : LOWEST), scratch, ids)));
            const float weight = seen ? exp_negative(score[r] - top) : 0.0f;
            const float shrink = exp_negative(largest[r] - top);
            largest[r] = top;
            total[r] = total[r] * shrink + weight;
            sum[r] *= shrink;
            weights[r * THREADS + local] = weight;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (part < parts) {
            for (uint p = part; p < min(end - tile, THREADS); p += parts) {
                const float4 v = float4(values[(value_row + tile + p) * quads + quad]);
                for (uint r = 0; r < TILE_X; ++r) sum[r] += weights[r * THREADS + p] * v;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    for (uint r = 0; r < TILE_X; ++r) {
        const uint row = row0 + r;
        const float all = group_sum_f32(total[r], scratch, ids);
        shares[local] = sum[r];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (local < quads && row < rows) {
            float4 v = shares[local];
            for (uint p = 1; p < parts; ++p) v += shares[local + p * quads];
            // In a share without positions, v and all are 0.
            v = v / max(all, 1e-30f);
            const uint tokens = groups.z * params.run;
            const uint output_row = (split * tokens + group.z * params.run + row / sharing) * params.heads + kv_head * sharing + row % sharing;
            for (uint j = 0; j < 4; ++j) {
                const uint d = local * 4u + j;
                if (d < params.head_dim) y[output_row * params.head_dim + d] = v[j];
            }
            if (local == 0) y_weight[output_row] = float2(largest[r], all);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
