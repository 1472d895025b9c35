// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], on top of what y is if `add` is not 0, for one token t a row of threadgroups.
// A SIMD-group makes ROWS rows: each lane takes every 32nd word of the rows and the activations that belong to it.
struct Params { uint rows, tokens, words, add; };

static_assert(ROWS == 8, "lanes share eight rows");

// Lanes that share 2·pairs rows: of each pair of rows one lane keeps the even one and gives the odd one to another, to which `exchange` leads.
#define SHARE(pairs, mask, exchange) \
    for (uint r = 0; r < pairs; ++r) { \
        const Acc even = acc[2u * r]; \
        const Acc odd = acc[2u * r + 1u]; \
        const bool keeps_odd = (lane & mask) != 0u; \
        acc[r] = (keeps_odd ? odd : even) + exchange(keeps_odd ? even : odd, ushort(mask)); \
    }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_gemv(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device const uint4* x        [[buffer(3)]],
    device const float* x_scale  [[buffer(4)]],
    device const int2* x_sum     [[buffer(5)]],
    device Y* y                  [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane   [[thread_index_in_simdgroup]],
    uint simd   [[simdgroup_index_in_threadgroup]])
{
    const uint row0 = group.x * TILE_X + simd * ROWS;
    const uint token = group.y;
    if (row0 >= params.rows) return;
    // Rows that do not exist are read as the last one, and not written. Indices are 32-bit sums from the buffers' own pointers, which the load
    // instruction adds for nothing; a pointer for every row costs 64-bit sums.
    uint first[ROWS];
    for (uint r = 0; r < ROWS; ++r) first[r] = min(row0 + r, params.rows - 1u) * params.words;
    const uint even = token * 2u * params.words;
    const uint odd = even + params.words;

    Acc acc[ROWS];
    for (uint r = 0; r < ROWS; ++r) acc[r] = 0;
    for (uint i = lane; i < params.words; i += 32) {
        uint word[ROWS];
        for (uint r = 0; r < ROWS; ++r) word[r] = codes[first[r] + i];
        const uint4 a = x[even + i];
        const uint4 b = x[odd + i];
        for (uint r = 0; r < ROWS; ++r) acc[r] = dot_word(word[r], a, b, acc[r]);
    }

    // Once every lane is left with one row, lane l with row l % 8, the lanes with the same one add up; sums are exact in any order. Lane r writes
    // row r, so the scaling is done for all rows at once.
    SHARE(4, 1u, quad_shuffle_xor)
    SHARE(2, 2u, quad_shuffle_xor)
    SHARE(1, 4u, simd_shuffle_xor)
    Acc sum = acc[0];
    sum += simd_shuffle_xor(sum, ushort(8));
    sum += simd_shuffle_xor(sum, ushort(16));
    const uint row = row0 + lane;
    if (lane < ROWS && row < params.rows) {
        const float product = exact_quotient(finish(sum, x_sum[token]) * w_scale[row], x_scale[token]);
        const uint at = token * params.rows + row;
        y[at] = Y(params.add != 0 ? float(y[at]) + product : product);
    }
}
