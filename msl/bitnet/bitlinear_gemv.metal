// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0; for few tokens t. codes is [rows, words] words of
// sixteen codes, x [tokens, 2, words] vectors of four words, y [tokens, rows]. A threadgroup computes TILE_X rows of one token, a SIMD-group ROWS
// rows: each lane takes every 32nd word of them and the activations that belong to it. dot_*.metal multiplies a word.
// A part before brings `Params`, and what is done to a product before it is stored (msl/tensor/product_plain.metal, product_finish.metal).

static_assert(ROWS == 8, "three exchanges leave each lane one of eight rows");

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_gemv(
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
    const uint token = group.y;
    if (row0 >= params.rows) return;
    // Rows that do not exist are read as the last one, and not written. Indices have 32 bits, and the load instruction adds them to the buffer's
    // pointer for free; a pointer for every row would cost 64-bit additions.
    uint row_start[ROWS];
    for (uint r = 0; r < ROWS; ++r) row_start[r] = min(row0 + r, params.rows - 1u) * params.words;
    const uint x0_start = token * 2u * params.words;
    const uint x1_start = x0_start + params.words;

    Acc acc[ROWS];
    for (uint r = 0; r < ROWS; ++r) acc[r] = 0;
    for (uint i = lane; i < params.words; i += 32) {
        uint w[ROWS];
        for (uint r = 0; r < ROWS; ++r) w[r] = codes[row_start[r] + i];
        const uint4 x0 = x[x0_start + i];
        const uint4 x1 = x[x1_start + i];
        for (uint r = 0; r < ROWS; ++r) acc[r] = dot_word(w[r], x0, x1, acc[r]);
    }

    // Lanes share their rows until lane l is left with row l % 8; then the lanes with the same row add up. Sums are exact in any order. Lane r scales
    // and writes row r, so that all rows are scaled at once.
    SHARE(4, 1u, quad_shuffle_xor)
    SHARE(2, 2u, quad_shuffle_xor)
    SHARE(1, 4u, simd_shuffle_xor)
    Acc sum = acc[0];
    sum += simd_shuffle_xor(sum, ushort(8));
    sum += simd_shuffle_xor(sum, ushort(16));
    const uint row = row0 + lane;
    if (lane < ROWS && row < params.rows) {
        const float product = FINISHED(exact_quotient(finish(sum, x_sum[token]) * w_scale[row], x_scale[token]), row);
        const uint output = token * params.rows + row;
        y[output] = Y(params.add != 0 ? float(y[output]) + product : product);
    }
}
