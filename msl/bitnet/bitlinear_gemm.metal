// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0; for many tokens t, on the simdgroup matrices. codes is
// [rows, words] words of sixteen codes, x [tokens, 2, words] vectors of four words, y [tokens, rows]. A threadgroup of four SIMD-groups computes
// 64 rows × TILE_Y tokens (16, 32 or 64), each SIMD-group a quarter of 32 rows and half the tokens. 64 elements of every row and token are in
// threadgroup memory at a time as f16, in the f16 layout's order on both sides.
// A part before brings `Params`, and what is done to a product before it is stored (msl/tensor/product_plain.metal, product_finish.metal).
using metal::make_filled_simdgroup_matrix; using metal::simdgroup_float8x8; using metal::simdgroup_half8x8; using metal::simdgroup_load;
using metal::simdgroup_multiply_accumulate; using metal::simdgroup_store;

// The distance of rows in threadgroup memory, in f16: 64, and 8 more so that neighboring rows start in different banks.
#define STRIDE 72

// How many matrices of eight tokens a SIMD-group has.
#define MATRICES (TILE_Y / 16)

// A masked field, two codes times 4^f, as normal f16 (1024 + code·4^f - 1024), so that flushed subnormals do no harm.
static inline half2 widen(uint field) { return as_type<half2>(field | 0x64006400u) - half2(1024.0h); }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_gemm(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device const uint4* x        [[buffer(3)]],
    device const float* x_scale  [[buffer(4)]],
    device const int2* x_sum     [[buffer(5)]],
    device Y* y                  [[buffer(6)]] BIAS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup half w_tile[TILE_X * STRIDE];
    threadgroup half x_tile[TILE_Y * STRIDE];
    threadgroup float block[4 * 64];
    const uint row0 = group.x * TILE_X;
    const uint token0 = group.y * TILE_Y;
    const uint row_part = (subgroup % 2u) * 32u;
    const uint token_part = (subgroup / 2u) * (8u * MATRICES);

    simdgroup_float8x8 acc[MATRICES][4];
    for (uint j = 0; j < MATRICES; ++j)
        for (uint i = 0; i < 4; ++i) acc[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    for (uint first = 0; first < params.words; first += 4) {
        // Rows and tokens that do not exist are read as the last one, and not written.
        for (uint i = local; i < TILE_X * 4u; i += THREADS) {
            const uint row = min(row0 + i / 4u, params.rows - 1u);
            const uint word = codes[row * params.words + first + i % 4u];
            threadgroup half* to = w_tile + i / 4u * STRIDE + i % 4u * 16u;
            for (uint f = 0; f < 4; ++f) {
                const half2 even = widen(word & (0x00030003u << (2 * f)));
                const half2 odd = widen((word >> 8) & (0x00030003u << (2 * f)));
                to[2 * f] = even.x;
                to[2 * f + 1] = even.y;
                to[2 * f + 8] = odd.x;
                to[2 * f + 9] = odd.y;
            }
        }
        for (uint i = local; i < TILE_Y * 8u; i += THREADS) {
            const uint token = min(token0 + i / 8u, params.tokens - 1u);
            const uint plane = i % 2u;
            const uint word = i / 2u % 4u;
            const uint4 a = x[(token * 2u + plane) * params.words + first + word];
            threadgroup half* to = x_tile + i / 8u * STRIDE + word * 16u + plane * 8u;
            for (uint f = 0; f < 4; ++f) {
                const half2 pair = as_type<half2>(a[f]);
                to[2 * f] = pair.x;
                to[2 * f + 1] = pair.y;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 64; k += 8) {
            simdgroup_half8x8 w[4];
            for (uint i = 0; i < 4; ++i) simdgroup_load(w[i], w_tile + (row_part + 8 * i) * STRIDE + k, STRIDE, ulong2(0, 0), true);
            for (uint j = 0; j < MATRICES; ++j) {
                simdgroup_half8x8 a;
                simdgroup_load(a, x_tile + (token_part + 8 * j) * STRIDE + k, STRIDE);
                for (uint i = 0; i < 4; ++i) simdgroup_multiply_accumulate(acc[j][i], a, w[i], acc[j][i]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    for (uint j = 0; j < MATRICES; ++j) {
        for (uint i = 0; i < 4; ++i) {
            simdgroup_store(acc[j][i], block + subgroup * 64u, 8);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint e = lane; e < 64; e += 32) {
                const uint token = token0 + token_part + 8 * j + e / 8u;
                const uint row = row0 + row_part + 8 * i + e % 8u;
                if (token < params.tokens && row < params.rows) {
                    const float sum = block[subgroup * 64u + e] - float(x_sum[token].x);
                    const float product = FINISHED(exact_quotient(sum * w_scale[row], x_scale[token]), row);
                    const uint output = token * params.rows + row;
                    y[output] = Y(params.add != 0 ? float(y[output]) + product : product);
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}
