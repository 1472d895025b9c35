// y[t, r] = Σ_k a[t, k]·Wq[r, k]·w_scale[r, group of k], on top of y if `add` is not 0, for few tokens t, whose activations are floats. A SIMD-group
// makes ROWS rows × TILE_Y tokens: each lane takes every 32nd word of the rows. The sixteen products of a word are ±x or 0, so exact. They are added
// in order, scaled, and added to what the lane has; lanes are added in their order, as in wgsl/bitnet/bitlinear_float_gemv.wgsl: bit-identical for any
// ROWS and TILE_Y. `ALIGNED` is 1 where the rows of a are whole quads, 2 where they are whole words.
struct Params { uint m, n, k, words, groups, group_words, transposed, add, biased, activation; };

// A SIMD-group's sums: of row r and token t, number t·ROWS + r.
#define SUMS (ROWS * TILE_Y)
static_assert(SUMS <= 32, "a lane adds up one sum");

// Quad f of word i of a token, 0 where there is none.
static inline float4 activations(device const X4* a, uint token, uint i, uint f, uint k) {
    if (ALIGNED == 2) return float4(a[token * (k / 4u) + 4u * i + f]);
    const uint at = 16u * i + 4u * f;
    if (ALIGNED == 1) return at < k ? float4(a[(token * k + at) / 4u]) : float4(0.0f);
    float4 x = float4(0.0f);
    for (uint j = 0; j < 4; ++j) x[j] = at + j < k ? float(((device const X*)a)[token * k + at + j]) : 0.0f;
    return x;
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_float_gemv(
    constant Params& params      [[buffer(0)]],
    device const X4* a           [[buffer(1)]],
    device const uint* codes     [[buffer(2)]],
    device const float* w_scale  [[buffer(3)]],
    device Y* y                  [[buffer(4)]] BIAS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    // What 32 lanes have of a sum, in rows of 33, so that lanes which read different sums meet different banks.
    threadgroup float of_lanes[TILE_X * TILE_Y * 33];
    const uint row0 = group.x * TILE_X + subgroup * ROWS;
    const uint token0 = group.y * TILE_Y;
    // Rows that do not exist are read as the last one, and not written. Indices have 32 bits, and the load instruction adds them to the buffer's pointer
    // for free.
    uint codes_start[ROWS], scales_start[ROWS];
    for (uint r = 0; r < ROWS; ++r) {
        const uint row = min(row0 + r, params.n - 1u);
        codes_start[r] = row * params.words;
        scales_start[r] = row * params.groups;
    }
    // A lane's word is number `in_group` of the words of group `of`: a division for all of its turns.
    const uint step = 32u / params.group_words, rest = 32u % params.group_words;
    uint of = lane / params.group_words, in_group = lane % params.group_words;

    float sum[SUMS];
    for (uint s = 0; s < SUMS; ++s) sum[s] = 0.0f;
    for (uint i = lane; 16u * i < params.k; i += 32) {
        uint even[ROWS], odd[ROWS];
        float scale[ROWS], of_word[SUMS];
        for (uint r = 0; r < ROWS; ++r) {
            const uint word = codes[codes_start[r] + i];
            even[r] = biased(word);
            odd[r] = biased(word >> 8);
            scale[r] = w_scale[scales_start[r] + of];
        }
        in_group += rest;
        const bool next = in_group >= params.group_words;
        of += step + uint(next);
        in_group -= next ? params.group_words : 0u;
        for (uint s = 0; s < SUMS; ++s) of_word[s] = 0.0f;
        for (uint f = 0; f < 4; ++f) {
            float4 w[ROWS];
            for (uint r = 0; r < ROWS; ++r) w[r] = weights(even[r], odd[r], f);
            for (uint t = 0; t < TILE_Y; ++t) {
                // The first token there is.
                if (t > 0 && token0 + t >= params.m) continue;
                const float4 x = activations(a, token0 + t, i, f, params.k);
                for (uint r = 0; r < ROWS; ++r) of_word[t * ROWS + r] = dot_in_order(w[r], x, of_word[t * ROWS + r]);
            }
        }
        for (uint s = 0; s < SUMS; ++s) sum[s] = fma(of_word[s], scale[s % ROWS], sum[s]);
    }
    for (uint s = 0; s < SUMS; ++s) of_lanes[(subgroup * SUMS + s) * 33u + lane] = sum[s];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Lane s adds up sum s.
    const uint row = row0 + lane % ROWS, token = token0 + lane / ROWS;
    if (lane >= SUMS || token >= params.m || row >= params.n) return;
    float all = 0.0f;
    for (uint i = 0; i < 32; ++i) all += of_lanes[(subgroup * SUMS + lane) * 33u + i];
    const uint at = token * params.n + row;
    const float v = FINISHED(all, row);
    y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
}
