// The product of floats with ternary weights W on the simdgroup matrices: with `transposed`, W is [n, k] and y = a·Wᵀ, which is BitLinear; else it is [k, n] and
// y = a·W, its gradient; on top of y if `add` is not 0. wgsl/bitnet/matmul_ternary.wgsl says how codes and scales lie in memory. Tiles are of floats: a
// half does not hold every scale.
struct Params { uint m, n, k, words, groups, group_words, transposed, add, biased, activation; };

// W: its rows, the columns of a row, and where their codes and scales are.
struct Ternary { device const uint* codes; device const float* scale; uint lines, length, words, groups, group_words; bool along_k; };

// Elements at .. at + 4 of a row of W, four codes that lie eight bits apart; 0 where there is none. The last bits of 1024 as a half count its ones, so
// two masked fields, put there, are 1024 + code·4^f, and a subtraction, which is exact, makes them value·4^f.
static inline float4 right_quad(Ternary w, uint line, uint at) {
    if (line >= w.lines || at >= w.length) return float4(0.0f);
    const uint word = at / 16u;
    const uint f = at % 16u / 4u;
    const uint fields = w.codes[line * w.words + word];
    const uint ones = 0x00010001u << (2u * f);
    const uint mask = ones + 2u * ones;
    const half2 zero = as_type<half2>(0x64006400u + ones);
    const half2 even = as_type<half2>((fields & mask) | 0x64006400u) - zero;
    const half2 odd = as_type<half2>(((fields >> 8) & mask) | 0x64006400u) - zero;
    const float one = as_type<float>((127u - 2u * f) << 23);
    return float4(float(even.x), float(odd.x), float(even.y), float(odd.y)) * one * w.scale[line * w.groups + word / w.group_words];
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul(
    constant Params& params      [[buffer(0)]],
    device const X* a            [[buffer(1)]],
    device const uint* codes     [[buffer(2)]],
    device const float* w_scale  [[buffer(3)]],
    device Y* y                  [[buffer(4)]] BIAS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float a_tile[TILE_Y * A_PITCH];
    threadgroup float b_tile[DEPTH * B_PITCH];
    threadgroup float block[4 * 64];
    Floats left;
    left.from = a;
    left.along_k = true;
    left.lines = params.m;
    left.length = params.k;
    left.start = 0;
    Ternary right;
    right.codes = codes;
    right.scale = w_scale;
    right.along_k = params.transposed != 0;
    right.lines = right.along_k ? params.n : params.k;
    right.length = right.along_k ? params.k : params.n;
    right.words = params.words;
    right.groups = params.groups;
    right.group_words = params.group_words;
    multiply<float>(params, left, right, y BIAS_GIVEN, a_tile, b_tile, block, group, local, lane, subgroup);
}
