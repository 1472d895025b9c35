// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0; for several tokens t. codes is [rows, words] words of
// sixteen codes, x [tokens, 2, words] vectors of four words, y [tokens, rows]. A threadgroup computes TILE_X rows of TILE_Y tokens, a SIMD-group
// ROWS rows of all these tokens: each lane takes every 32nd word of them, once for all tokens, and the activations that belong to it. dot_*.metal
// multiplies a word.
// A part before brings `Params`, and what is done to a product before it is stored (msl/tensor/product_plain.metal, product_finish.metal).

// A SIMD-group's sums: of row r and token t, number t·ROWS + r.
#define SUMS (ROWS * TILE_Y)
static_assert(SUMS == 16 || SUMS == 32, "exchanges leave each lane one sum");

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_gemv_several(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device const uint4* x        [[buffer(3)]],
    device const float* x_scale  [[buffer(4)]],
    device const int2* x_sum     [[buffer(5)]],
    device Y* y                  [[buffer(6)]] BIAS_ARGUMENT,
    uint2 group   [[threadgroup_position_in_grid]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    const uint row0 = group.x * TILE_X + subgroup * ROWS;
    const uint token0 = group.y * TILE_Y;
    if (row0 >= params.rows) return;
    // Rows and tokens that do not exist are read as the last one, and not written. Indices have 32 bits, and the load instruction adds them to the
    // buffer's pointer for free; a pointer for every row would cost 64-bit additions.
    uint row_start[ROWS];
    for (uint r = 0; r < ROWS; ++r) row_start[r] = min(row0 + r, params.rows - 1u) * params.words;
    uint x_start[TILE_Y];
    for (uint t = 0; t < TILE_Y; ++t) x_start[t] = min(token0 + t, params.tokens - 1u) * 2u * params.words;

    Acc acc[SUMS];
    for (uint s = 0; s < SUMS; ++s) acc[s] = 0;
    for (uint i = lane; i < params.words; i += 32) {
        uint w[ROWS];
        for (uint r = 0; r < ROWS; ++r) w[r] = codes[row_start[r] + i];
        uint4 x0[TILE_Y], x1[TILE_Y];
        for (uint t = 0; t < TILE_Y; ++t) {
            x0[t] = x[x_start[t] + i];
            x1[t] = x[x_start[t] + params.words + i];
        }
        // Rows outside, so that the fields of one word are in registers at a time.
        for (uint r = 0; r < ROWS; ++r) {
            for (uint t = 0; t < TILE_Y; ++t) acc[t * ROWS + r] = dot_word(w[r], x0[t], x1[t], acc[t * ROWS + r]);
        }
    }

    // Lanes share their sums until lane l is left with sum l % SUMS; where there are fewer sums than lanes, those with the same one add up. Sums are
    // exact in any order. A lane scales and writes its sum, so that all are scaled at once.
    SHARE(SUMS / 2, 1u, quad_shuffle_xor)
    SHARE(SUMS / 4, 2u, quad_shuffle_xor)
    SHARE(SUMS / 8, 4u, simd_shuffle_xor)
    SHARE(SUMS / 16, 8u, simd_shuffle_xor)
    if (SUMS == 32) {
        SHARE(1, 16u, simd_shuffle_xor)
    } else {
        acc[0] += simd_shuffle_xor(acc[0], ushort(16));
    }
    const uint row = row0 + lane % ROWS;
    const uint token = token0 + lane / ROWS;
    if (lane < SUMS && row < params.rows && token < params.tokens) {
        const float product = FINISHED(exact_quotient(finish(acc[0], x_sum[token]) * w_scale[row], x_scale[token]), row);
        const uint output = token * params.rows + row;
        y[output] = Y(params.add != 0 ? float(y[output]) + product : product);
    }
}
