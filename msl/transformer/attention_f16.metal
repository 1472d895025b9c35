// Causal attention of many new tokens on the simdgroup matrices, after rope.metal, from keys and values in f16: queries and weights are multiplied as f16, and
// products added up in the hardware's order. A row is batch-invariant. How, and why weights are not of a row's largest score:
// wgsl/transformer/attention_tensor_cores.wgsl. A threadgroup goes through all positions that its TILE_X rows see, SPAN at a time; a SIMD-group has eight rows, of
// scores and of HEAD columns of outputs. In what it has in threadgroup memory, lane l has row l / 4, and of its quads every fourth, from l % 4 on.
using metal::make_filled_simdgroup_matrix; using metal::simdgroup_float8x8; using metal::simdgroup_half8x8; using metal::simdgroup_load;
using metal::simdgroup_multiply_accumulate; using metal::simdgroup_store;
#define QUADS (HEAD / 4u)
#define ALONG (HEAD / 8u)
#define ACROSS (SPAN / 8u)
// e^SLACK is far below the largest half.
#define SLACK 8.0f

// Lines of keys and values, a position each, and of queries, a row each, have PITCH quads of f16; those of scores SCORES quads of floats, and of weights
// WEIGHTS quads of f16: more than they hold, so that eight lines meet no bank twice.

static inline float exchanged(float v, ushort mask) { return quad_shuffle_xor(v, mask); }
// LOWEST instead of scores from `end` on, of four neighboring positions.
static inline float4 seen(uint position, uint end, float4 v) {
    return float4(
        position < end ? v.x : LOWEST, position + 1u < end ? v.y : LOWEST, position + 2u < end ? v.z : LOWEST, position + 3u < end ? v.w : LOWEST);
}

static inline float most_of(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }

// Eight rows of a matrix, of which lane l's row is multiplied with its factor. A matrix cannot be scaled row by row where it is.
static inline void scale_rows(thread simdgroup_float8x8& sums, float factor, threadgroup float* scores, uint lane) {
    simdgroup_store(sums, scores, 4u * SCORES);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float2* own = (threadgroup float2*)(scores + 4u * (lane / 4u) * SCORES) + lane % 4u;
    *own *= factor;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(sums, scores, 4u * SCORES);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention_f16(
    constant Params& params      [[buffer(0)]],
    device const uint2* runs     [[buffer(1)]],
    device const float4* qkv     [[buffer(2)]],
    device const half4* keys     [[buffer(3)]],
    device const half4* values   [[buffer(4)]],
    device float* y              [[buffer(5)]],
    uint3 group    [[threadgroup_position_in_grid]],
    uint3 groups   [[threadgroups_per_grid]],
    uint local     [[thread_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]],
    uint subgroup  [[simdgroup_index_in_threadgroup]])
{
    static_assert(4u * PITCH == HEAD + 8u && 4u * SCORES == SPAN + 4u && 4u * WEIGHTS == SPAN + 8u, "what lines hold");
    static_assert(TILE_X == 2u * SPAN && TILE_X * 4u == THREADS, "queries take the place of keys and values");
    // Keys, then values; before them queries.
    threadgroup half4 staged_quads[2u * SPAN * PITCH];
    threadgroup float4 score_quads[TILE_X * SCORES];
    threadgroup half4 weight_quads[TILE_X * WEIGHTS];
    threadgroup half* staged = (threadgroup half*)staged_quads;
    const uint2 taken = longest_first(group, groups);
    const Rows rows = rows_of(params, runs, taken.x, taken.y, group.z);
    const uint cache_row = rows.sequence * params.kv_heads + rows.kv_head;
    threadgroup float* scores = (threadgroup float*)(score_quads + subgroup * 8u * SCORES);
    threadgroup half* weights = (threadgroup half*)(weight_quads + subgroup * 8u * WEIGHTS);
    threadgroup const float4* scored = score_quads + (subgroup * 8u + lane / 4u) * SCORES + lane % 4u;
    threadgroup half4* weighted = weight_quads + (subgroup * 8u + lane / 4u) * WEIGHTS + lane % 4u;
    // Rows that do not exist are the last one, and not written.
    const uint asked = rows.first + subgroup * 8u + lane / 4u;
    const uint row = min(asked, rows.count - 1u);
    const uint end = min(rows.past + row / rows.sharing + 1u, rows.visible);

    for (uint i = local; i < TILE_X * QUADS; i += THREADS) {
        const uint query = head_of(rows, min(rows.first + i / QUADS, rows.count - 1u), params.heads + 2u * params.kv_heads);
        staged_quads[i / QUADS * PITCH + i % QUADS] = half4(qkv[query * QUADS + i % QUADS] * params.scale);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 queries[ALONG];
    for (uint part = 0; part < ALONG; ++part) simdgroup_load(queries[part], staged + subgroup * 32u * PITCH + 8u * part, 4u * PITCH);

    simdgroup_float8x8 sums[ALONG];
    for (uint part = 0; part < ALONG; ++part) sums[part] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    float top = LOWEST;
    float total = 0.0f;
    for (uint start = 0; start < rows.visible; start += SPAN) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Beyond the last position that is seen, it is taken again. Neighboring threads read what lies side by side: keys of positions, values of a position.
        for (uint i = local; i < SPAN * QUADS; i += THREADS) {
            const uint position = min(start + i % SPAN, rows.visible - 1u);
            staged_quads[i % SPAN * PITCH + i / SPAN] = keys[(cache_row * QUADS + i / SPAN) * params.capacity + position];
        }
        for (uint i = local; i < SPAN * QUADS; i += THREADS) {
            const uint position = min(start + i / QUADS, rows.visible - 1u);
            staged_quads[(SPAN + i / QUADS) * PITCH + i % QUADS] = values[(cache_row * params.capacity + position) * QUADS + i % QUADS];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint a = 0; a < ACROSS; ++a) {
            simdgroup_float8x8 products = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            for (uint part = 0; part < ALONG; ++part) {
                simdgroup_half8x8 of_keys;
                simdgroup_load(of_keys, staged + 32u * a * PITCH + 8u * part, 4u * PITCH, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(products, queries[part], of_keys, products);
            }
            simdgroup_store(products, scores + 8u * a, 4u * SCORES);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);

        float4 v[ACROSS / 2u];
        float most = LOWEST;
        for (uint i = 0; i < ACROSS / 2u; ++i) {
            const uint position = start + 4u * (lane % 4u + 4u * i);
            v[i] = seen(position, end, scored[4u * i]);
            most = max(most, most_of(v[i]));
        }
        most = max(most, exchanged(most, 1));
        most = max(most, exchanged(most, 2));
        const bool any_grows = simd_max(most - top) > SLACK;
        const bool grows = most - top > SLACK;
        const float shrink = grows ? exp_negative(top - most) : 1.0f;
        top = grows ? most : top;
        // Of the first positions there are no sums yet.
        if (start != 0u && any_grows) {
            // All lanes have their scores.
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint part = 0; part < ALONG; ++part) scale_rows(sums[part], shrink, scores, lane);
        }
        float4 own = float4(0.0f);
        for (uint i = 0; i < ACROSS / 2u; ++i) {
            // At most e^SLACK: what exp_negative says of numbers up to 0 holds up to there.
            const half4 w = half4(float4(exp_negative(v[i].x - top), exp_negative(v[i].y - top), exp_negative(v[i].z - top), exp_negative(v[i].w - top)));
            own += float4(w);
            weighted[4u * i] = w;
        }
        total = total * shrink + ((own.x + own.y) + (own.z + own.w));
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint a = 0; a < ACROSS; ++a) {
            simdgroup_half8x8 by_weight;
            simdgroup_load(by_weight, weights + 8u * a, 4u * WEIGHTS);
            for (uint part = 0; part < ALONG; ++part) {
                simdgroup_half8x8 of_values;
                simdgroup_load(of_values, staged + 4u * (SPAN + 8u * a) * PITCH + 8u * part, 4u * PITCH);
                simdgroup_multiply_accumulate(sums[part], by_weight, of_values, sums[part]);
            }
        }
    }

    total += exchanged(total, 1);
    total += exchanged(total, 2);
    device float2* output = (device float2*)(y + head_of(rows, row, params.heads) * HEAD) + lane % 4u;
    for (uint part = 0; part < ALONG; ++part) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_store(sums[part], scores, 4u * SCORES);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (asked >= rows.count) continue;
        const float2 attended = ((threadgroup const float2*)(scores + 4u * (lane / 4u) * SCORES))[lane % 4u] / total;
        if (params.add != 0u) output[4u * part] += attended;
        else output[4u * part] = attended;
    }
}
