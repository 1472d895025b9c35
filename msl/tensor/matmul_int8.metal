// y[b, i, j] = Σ a[b, i, l]·b[b, j, l] over l, of bytes with signs, on the simdgroup matrices: see wgsl/tensor/matmul_int8.wgsl. A threadgroup of four
// SIMD-groups makes 64 × 64 outputs, each SIMD-group a quarter of 32 × 32. DEPTH bytes of every row are in threadgroup memory at a time, as f16. A product is
// 2^14 at most, and a float holds sums of 1024 of them exactly, in any order; then they are added to the integers in y.
using metal::make_filled_simdgroup_matrix; using metal::simdgroup_float8x8; using metal::simdgroup_half8x8; using metal::simdgroup_load;
using metal::simdgroup_multiply_accumulate; using metal::simdgroup_store;
struct Params { uint m, n, k, a_batch, b_batch; };

// The distance of rows in threadgroup memory, in f16: DEPTH (32), and 8 more so that neighboring rows start in different banks.
#define STRIDE 40
#define EXACT 1024u

// DEPTH bytes of 64 rows, from byte `first` of each on. `side` has rows of k bytes one after another, from its byte `start` on. What is not there is 0.
static inline void stage(
    device const char* side, uint start, uint rows, uint k, uint row0, uint first, threadgroup half* tile, uint local)
{
    for (uint i = local; i < 64u * DEPTH / 4u; i += THREADS) {
        // Neighboring threads read what lies side by side.
        const uint row = row0 + i / (DEPTH / 4u);
        const uint l = first + i % (DEPTH / 4u) * 4u;
        threadgroup half* to = tile + i / (DEPTH / 4u) * STRIDE + i % (DEPTH / 4u) * 4u;
        for (uint e = 0; e < 4; ++e) to[e] = row < rows && l + e < k ? half(side[start + row * k + l + e]) : 0.0h;
    }
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul_int8(
    constant Params& params  [[buffer(0)]],
    device const uint* a     [[buffer(1)]],
    device const uint* b     [[buffer(2)]],
    device int* y            [[buffer(3)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup half a_tile[64 * STRIDE];
    threadgroup half b_tile[64 * STRIDE];
    threadgroup float block[4 * 64];
    const uint row0 = group.y * TILE_Y;
    const uint column0 = group.x * TILE_X;
    const uint row_part = subgroup / 2u * 32u;
    const uint column_part = subgroup % 2u * 32u;
    // Where k is 0 the sums are 0, once.
    for (uint begin = 0; begin == 0 || begin < params.k; begin += EXACT) {
        simdgroup_float8x8 acc[4][4];
        for (uint j = 0; j < 4; ++j)
            for (uint i = 0; i < 4; ++i) acc[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint first = begin; first < min(begin + EXACT, params.k); first += DEPTH) {
            stage((device const char*)a, group.z * params.a_batch, params.m, params.k, row0, first, a_tile, local);
            stage((device const char*)b, group.z * params.b_batch, params.n, params.k, column0, first, b_tile, local);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint l = 0; l < DEPTH; l += 8) {
                simdgroup_half8x8 columns[4];
                for (uint i = 0; i < 4; ++i) {
                    simdgroup_load(columns[i], b_tile + (column_part + 8 * i) * STRIDE + l, STRIDE, ulong2(0, 0), true);
                }
                for (uint j = 0; j < 4; ++j) {
                    simdgroup_half8x8 rows;
                    simdgroup_load(rows, a_tile + (row_part + 8 * j) * STRIDE + l, STRIDE);
                    for (uint i = 0; i < 4; ++i) simdgroup_multiply_accumulate(acc[j][i], rows, columns[i], acc[j][i]);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        for (uint j = 0; j < 4; ++j) {
            for (uint i = 0; i < 4; ++i) {
                simdgroup_store(acc[j][i], block + subgroup * 64u, 8);
                simdgroup_barrier(mem_flags::mem_threadgroup);
                for (uint e = lane; e < 64; e += 32) {
                    const uint row = row0 + row_part + 8 * j + e / 8u;
                    const uint column = column0 + column_part + 8 * i + e % 8u;
                    if (row < params.m && column < params.n) {
                        const uint at = (group.z * params.m + row) * params.n + column;
                        // This thread has written it.
                        y[at] = int(block[subgroup * 64u + e]) + (begin != 0 ? y[at] : 0);
                    }
                }
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
        }
    }
}
