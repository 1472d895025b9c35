// y[t, r] = Σ_g (Σ_{k in g} xq[t, k]·Wq[r, k]) · w_scale[r, g] / x_scale[t], added to y if `add` is not 0: scales for groups of `group_words` words, as
// wgsl/bitnet/bitlinear_grouped.wgsl has it. A threadgroup computes TILE_X rows of TILE_Y tokens, a SIMD-group ROWS rows of all these tokens: each lane
// takes every 32nd word of them. The sum of a word is an exact integer in floats; the scaled sums are added by lanes in an order that is the same for any
// ROWS and TILE_Y.
// A part before says what is done to a product before it is stored (msl/tensor/product_plain.metal, product_finish.metal).
struct Params { uint rows, tokens, words, groups, group_words, add, biased, activation; };

typedef float Acc;

// A SIMD-group's sums: of row r and token t, number t·ROWS + r.
#define SUMS (ROWS * TILE_Y)
static_assert(SUMS == 8 || SUMS == 16, "exchanges leave each lane one sum");

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_grouped(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device const uint4* x        [[buffer(3)]],
    device const float* x_scale  [[buffer(4)]],
    device Y* y                  [[buffer(5)]] BIAS_ARGUMENT,
    uint2 group   [[threadgroup_position_in_grid]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    const uint row0 = group.x * TILE_X + subgroup * ROWS;
    const uint token0 = group.y * TILE_Y;
    if (row0 >= params.rows) return;
    // Rows and tokens that do not exist are read as the last one, and not written. Indices have 32 bits, and the load instruction adds them to the
    // buffer's pointer for free.
    uint codes_start[ROWS], scales_start[ROWS], x_start[TILE_Y];
    for (uint r = 0; r < ROWS; ++r) {
        const uint row = min(row0 + r, params.rows - 1u);
        codes_start[r] = row * params.words;
        scales_start[r] = row * params.groups;
    }
    for (uint t = 0; t < TILE_Y; ++t) x_start[t] = min(token0 + t, params.tokens - 1u) * params.words;
    // A lane's word is number `in_group` of the words of group `of`: a division for all of its turns.
    const uint step = 32u / params.group_words, rest = 32u % params.group_words;
    uint of = lane / params.group_words, in_group = lane % params.group_words;

    float acc[SUMS];
    for (uint s = 0; s < SUMS; ++s) acc[s] = 0.0f;
    for (uint i = lane; i < params.words; i += 32) {
        uint even[ROWS], odd[ROWS];
        float scale[ROWS], of_word[SUMS];
        // The padding beyond the last group has activations 0.
        const uint g = min(of, params.groups - 1u);
        for (uint r = 0; r < ROWS; ++r) {
            const uint word = codes[codes_start[r] + i];
            even[r] = biased(word);
            odd[r] = biased(word >> 8);
            scale[r] = w_scale[scales_start[r] + g];
        }
        in_group += rest;
        const bool next = in_group >= params.group_words;
        of += step + uint(next);
        in_group -= next ? params.group_words : 0u;
        uint4 quads[TILE_Y];
        for (uint t = 0; t < TILE_Y; ++t) quads[t] = x[x_start[t] + i];
        for (uint s = 0; s < SUMS; ++s) of_word[s] = 0.0f;
        for (uint f = 0; f < 4; ++f) {
            float4 w[ROWS];
            for (uint r = 0; r < ROWS; ++r) w[r] = weights(even[r], odd[r], f);
            for (uint t = 0; t < TILE_Y; ++t) {
                const float4 v = float4(as_type<char4>(quads[t][f]));
                for (uint r = 0; r < ROWS; ++r) of_word[t * ROWS + r] = dot_in_order(w[r], v, of_word[t * ROWS + r]);
            }
        }
        for (uint s = 0; s < SUMS; ++s) acc[s] = fma(of_word[s], scale[s % ROWS], acc[s]);
    }

    // Lanes share their sums until lane l is left with sum l % SUMS; then those with the same one add up. A lane scales and writes its sum, so that all
    // are scaled at once.
    SHARE(SUMS / 2, 1u, quad_shuffle_xor)
    SHARE(SUMS / 4, 2u, quad_shuffle_xor)
    SHARE(SUMS / 8, 4u, simd_shuffle_xor)
    if (SUMS == 16) {
        SHARE(1, 8u, simd_shuffle_xor)
    } else {
        acc[0] += simd_shuffle_xor(acc[0], ushort(8));
    }
    acc[0] += simd_shuffle_xor(acc[0], ushort(16));
    const uint row = row0 + lane % ROWS;
    const uint token = token0 + lane / ROWS;
    if (lane < SUMS && row < params.rows && token < params.tokens) {
        const float product = FINISHED(exact_quotient(acc[0], x_scale[token]), row);
        const uint output = token * params.rows + row;
        y[output] = Y(params.add != 0 ? float(y[output]) + product : product);
    }
}
