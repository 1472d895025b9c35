// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, on the matrix units; for
// many tokens t, whose activations are in block floating point, in order. A block's sum is exact, whatever the order of the units; it is scaled, which
// rounds, and these are added in order: the bits of wgsl/bitnet/bitlinear_rounded_gemv.wgsl.
// A threadgroup of four SIMD-groups makes 64 rows × 64 tokens, each of them a quarter of 32 × 32. Sixteen columns are in threadgroup memory at a time.
struct Params { uint m, n, blocks, words, block_words, groups, group_blocks, lanes, add; };

// The distances of rows in threadgroup memory: 16 and 64 floats, and four more so that neighbouring rows start in different banks.
#define X_PITCH 20
#define W_PITCH 68

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_rounded_tiles(
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
    // Tokens × columns, and columns × rows.
    threadgroup float x_tile[64 * X_PITCH];
    threadgroup float w_tile[16 * W_PITCH];
    threadgroup float matrices[4 * 64];
    const uint row0 = group.x * 64u, token0 = group.y * 64u;
    const uint right = subgroup % 2u * 32u, down = subgroup / 2u * 32u;
    simdgroup_float8x8 sums[4][4];
    // Of a matrix of outputs a lane has one of its column `lane % 8` in the upper half, and one in the lower.
    float totals[4][4][2];
    for (uint j = 0; j < 4; ++j) {
        for (uint i = 0; i < 4; ++i) {
            sums[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            totals[j][i][0] = totals[j][i][1] = 0.0f;
        }
    }
    // A thread stages two quads of tokens, and half a word of a row. What does not exist is read as the last one, and not written.
    const uint token_quads = params.blocks * params.block_words * 4u;
    const uint row = min(row0 + local / 2u, params.n - 1u);

    for (uint block = 0; block < params.blocks; ++block) {
        for (uint word = block * params.block_words; word < (block + 1) * params.block_words; ++word) {
            for (uint i = local; i < 256; i += THREADS) {
                const uint token = min(token0 + i / 4u, params.m - 1u);
                *(threadgroup float4*)(x_tile + i / 4u * X_PITCH + i % 4u * 4u) = x[token * token_quads + 4u * word + i % 4u];
            }
            const uint w = codes[row * params.words + min(word, params.words - 1u)];
            const uint even = biased(w), odd = biased(w >> 8);
            for (uint f = local % 2u * 2u, end = f + 2u; f < end; ++f) {
                const float4 v = weights(even, odd, f);
                for (uint e = 0; e < 4; ++e) w_tile[(4u * f + e) * W_PITCH + local / 2u] = v[e];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint l = 0; l < 16; l += 8) {
                simdgroup_float8x8 columns[4];
                for (uint i = 0; i < 4; ++i) simdgroup_load(columns[i], w_tile + l * W_PITCH + right + 8 * i, W_PITCH);
                for (uint j = 0; j < 4; ++j) {
                    simdgroup_float8x8 tokens;
                    simdgroup_load(tokens, x_tile + (down + 8 * j) * X_PITCH + l, X_PITCH);
                    for (uint i = 0; i < 4; ++i) simdgroup_multiply_accumulate(sums[j][i], tokens, columns[i], sums[j][i]);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        for (uint i = 0; i < 4; ++i) {
            const uint of = min(row0 + right + 8 * i + lane % 8u, params.n - 1u);
            const float scale = w_scale[of * params.groups + block / params.group_blocks];
            for (uint j = 0; j < 4; ++j) {
                simdgroup_store(sums[j][i], matrices + subgroup * 64u, 8);
                simdgroup_barrier(mem_flags::mem_threadgroup);
                for (uint part = 0; part < 2; ++part) {
                    // `lanes` is 0 here, which no compiler knows: so none makes one rounding of two.
                    const float product = matrices[subgroup * 64u + 32u * part + lane] * scale;
                    totals[j][i][part] += as_type<float>(as_type<uint>(product) ^ params.lanes);
                }
                simdgroup_barrier(mem_flags::mem_threadgroup);
                sums[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    for (uint j = 0; j < 4; ++j) {
        for (uint i = 0; i < 4; ++i) {
            for (uint part = 0; part < 2; ++part) {
                const uint token = token0 + down + 8 * j + 4 * part + lane / 8u;
                const uint of = row0 + right + 8 * i + lane % 8u;
                if (token >= params.m || of >= params.n) continue;
                const uint at = token * params.n + of;
                y[at] = Y(params.add != 0 ? float(y[at]) + totals[j][i][part] : totals[j][i][part]);
            }
        }
    }
}
