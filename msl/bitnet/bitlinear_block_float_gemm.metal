// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, for many tokens t, whose
// activations are in block floating point, as floats in order: as wgsl/bitnet/bitlinear_block_float_gemm.wgsl, bit-identical, on the simdgroup matrices, which
// add up a block's sum exactly in any order. A threadgroup of four SIMD-groups makes 64 rows × 64 tokens, each of them 32 × 32. A word of every row, and as much
// of every token, is in threadgroup memory at a time.
using metal::make_filled_simdgroup_matrix; using metal::simdgroup_float8x8; using metal::simdgroup_load; using metal::simdgroup_multiply_accumulate;
using metal::simdgroup_store;
struct Params { uint m, n, blocks, words, block_words, groups, group_blocks, lanes, add; };

// Quads from one line to the next in threadgroup memory: of a word, and one more, so that eight lines meet no bank twice.
#define PITCH 5
// Matrices of eight rows, or of eight tokens, of a SIMD-group.
#define MATRICES 4
// Floats from one token to the next of what a SIMD-group scales.
#define SCALED 36

// A product that no compiler fuses with a sum. There are no 2^31 tokens; but that is not known when this is compiled.
static inline float apart(float product, uint tokens) { return as_type<float>(as_type<uint>(product) | tokens >> 31); }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_block_float_gemm(
    constant Params& params      [[buffer(0)]],
    device const float4* x       [[buffer(1)]],
    device const uint* codes     [[buffer(2)]],
    device const float* w_scale  [[buffer(3)]],
    device Y* y                  [[buffer(4)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float4 w_tile[TILE_X * PITCH];
    // Between two blocks, eight tokens' sums of each SIMD-group.
    threadgroup float4 x_tile[TILE_Y * PITCH];
    const uint row0 = group.x * TILE_X;
    const uint token0 = group.y * TILE_Y;
    const uint row_part = subgroup % 2u * 32u;
    const uint token_part = subgroup / 2u * 32u;
    threadgroup const float* of_rows = (threadgroup const float*)(w_tile + row_part * PITCH);
    threadgroup const float* of_tokens = (threadgroup const float*)(x_tile + token_part * PITCH);
    threadgroup float* scaled = (threadgroup float*)x_tile + subgroup * 8u * SCALED;
    // A lane scales the sums of a row.
    const uint row = row0 + row_part + lane;
    const uint scales = min(row, params.n - 1u) * params.groups;
    const uint row_words = params.blocks * params.block_words;

    simdgroup_float8x8 sums[MATRICES][4];
    float totals[MATRICES][8];
    for (uint j = 0; j < MATRICES; ++j) {
        for (uint i = 0; i < 4; ++i) sums[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint t = 0; t < 8; ++t) totals[j][t] = 0.0f;
    }
    for (uint block = 0; block < params.blocks; ++block) {
        for (uint word = block * params.block_words; word < (block + 1u) * params.block_words; ++word) {
            // Rows and tokens that do not exist are read as the last one, and not written. Beyond the end of a row codes are whatever they are: activations
            // are zeros there.
            for (uint i = local; i < TILE_X * 2u; i += THREADS) {
                const uint w = codes[min(row0 + i / 2u, params.n - 1u) * params.words + min(word, params.words - 1u)];
                const uint f = i % 2u * 2u;
                w_tile[i / 2u * PITCH + f] = weights(biased(w), biased(w >> 8), f);
                w_tile[i / 2u * PITCH + f + 1u] = weights(biased(w), biased(w >> 8), f + 1u);
            }
            for (uint i = local; i < TILE_Y * 4u; i += THREADS)
                x_tile[i / 4u * PITCH + i % 4u] = x[(min(token0 + i / 4u, params.m - 1u) * row_words + word) * 4u + i % 4u];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint k = 0; k < 16; k += 8) {
                simdgroup_float8x8 w[4];
                for (uint i = 0; i < 4; ++i) simdgroup_load(w[i], of_rows + 8 * i * 4 * PITCH + k, 4 * PITCH, ulong2(0, 0), true);
                for (uint j = 0; j < MATRICES; ++j) {
                    simdgroup_float8x8 a;
                    simdgroup_load(a, of_tokens + 8 * j * 4 * PITCH + k, 4 * PITCH);
                    for (uint i = 0; i < 4; ++i) simdgroup_multiply_accumulate(sums[j][i], a, w[i], sums[j][i]);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        const float scale = w_scale[scales + block / params.group_blocks];
        for (uint j = 0; j < MATRICES; ++j) {
            for (uint i = 0; i < 4; ++i) {
                simdgroup_store(sums[j][i], scaled + 8 * i, SCALED);
                sums[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint t = 0; t < 8; ++t) totals[j][t] += apart(scaled[t * SCALED + lane] * scale, params.m);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    for (uint j = 0; j < MATRICES; ++j) {
        for (uint t = 0; t < 8; ++t) {
            const uint token = token0 + token_part + 8 * j + t;
            if (token < params.m && row < params.n) {
                const uint output = token * params.n + row;
                y[output] = Y(params.add != 0 ? float(y[output]) + totals[j][t] : totals[j][t]);
            }
        }
    }
}
