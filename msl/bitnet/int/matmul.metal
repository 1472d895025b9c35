// The product of floats with weights W of 1 to 8 bits on the simdgroup matrices: with `transposed`, W is [n, k] and y = a·Wᵀ, which is BitLinear; else it is [k,
// n] and y = a·W, its gradient; on top of y if `add` is not 0. Tiles are of floats: a half does not hold every scale.
struct Params { uint m, n, k, words, groups, group_size, bits, transposed, add, biased, activation; };

// W: its rows, the columns of a row, and where their codes, scales and zero points are.
struct Codes {
    device const uint* codes; device const float* scale; device const float* zero;
    uint lines, length, words, groups, group_size, bits; bool along_k;
};

// Elements at .. at + 4 of a row of W, which a word has together; 0 beyond the row. What a row is padded with meets no input.
static inline float4 right_quad(Codes w, uint line, uint at) {
    if (line >= w.lines || at >= w.length) return float4(0.0f);
    const uint bit = at * w.bits;
    const uint word = w.codes[line * w.words + bit / 32u] >> (bit % 32u);
    const uint mask = (1u << w.bits) - 1u;
    const float4 fields = float4(uint4(word, word >> w.bits, word >> (2u * w.bits), word >> (3u * w.bits)) & uint4(mask));
    const uint affine = line * w.groups + at / w.group_size;
    return w.scale[affine] * (fields - float4(w.zero[affine]));
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul(
    constant Params& params      [[buffer(0)]],
    device const X* a            [[buffer(1)]],
    device const uint* codes     [[buffer(2)]],
    device const float* w_scale  [[buffer(3)]],
    device const float* w_zero   [[buffer(4)]],
    device Y* y                  [[buffer(5)]] BIAS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float a_tile[TILE_Y * A_PITCH];
    threadgroup float b_tile[DEPTH * B_PITCH];
    threadgroup float block[4 * 64];
    const Floats left = { a, params.m, params.k, 0, true };
    const bool along_k = params.transposed != 0;
    const Codes right = {
        codes, w_scale, w_zero, along_k ? params.n : params.k, along_k ? params.k : params.n,
        params.words, params.groups, params.group_size, params.bits, along_k,
    };
    multiply<float>(params, left, right, y BIAS_GIVEN, a_tile, b_tile, block, group, local, lane, subgroup);
}
