// Products on the simdgroup matrices. A threadgroup of four SIMD-groups makes 64 × 64 outputs, each SIMD-group a quarter of 32 × 32. DEPTH of the products are
// in threadgroup memory at a time, the left side in rows, the right one in rows of l. A kernel brings its parameters, of which `m`, `n`, `k` and `add` are
// used here, and its right side, from which `right_quad` loads four neighbors of a line. The order in which eight
// products are added is the device's.
using metal::make_filled_simdgroup_matrix; using metal::simdgroup_float8x8; using metal::simdgroup_load; using metal::simdgroup_matrix;
using metal::simdgroup_multiply_accumulate; using metal::simdgroup_store;

// The distances of rows in threadgroup memory: DEPTH and 64 elements, and four more so that neighboring rows start in different banks.
#define A_PITCH 20
#define B_PITCH 68

// Makes the tile of a threadgroup, with tiles of T.
template <typename T, typename Problem, typename Right>
static inline void multiply(
    constant Problem& params, Floats left, Right right, device Y* y BIAS_PARAMETER,
    threadgroup T* a_tile, threadgroup T* b_tile, threadgroup float* block,
    uint3 group, uint local, uint lane, uint subgroup)
{
    const uint row0 = group.y * TILE_Y;
    const uint column0 = group.x * TILE_X;
    const uint row_part = subgroup / 2u * 32u;
    const uint column_part = subgroup % 2u * 32u;
    simdgroup_float8x8 acc[4][4];
    for (uint j = 0; j < 4; ++j)
        for (uint i = 0; i < 4; ++i) acc[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    for (uint first = 0; first < params.k; first += DEPTH) {
        for (uint i = local; i < 16u * DEPTH; i += THREADS) {
            // A quad along k, of one output, or of outputs, at one depth. Neighboring threads read what lies side by side.
            const uint l_along = i % (DEPTH / 4u) * 4u, output_along = i / (DEPTH / 4u);
            const uint l_across = i / 16u, output_across = i % 16u * 4u;
            if (left.along_k) {
                const X4 v = load4(left, row0 + output_along, first + l_along);
                for (uint e = 0; e < 4; ++e) a_tile[output_along * A_PITCH + l_along + e] = T(v[e]);
            } else {
                const X4 v = load4(left, first + l_across, row0 + output_across);
                for (uint e = 0; e < 4; ++e) a_tile[(output_across + e) * A_PITCH + l_across] = T(v[e]);
            }
            if (right.along_k) {
                const auto v = right_quad(right, column0 + output_along, first + l_along);
                for (uint e = 0; e < 4; ++e) b_tile[(l_along + e) * B_PITCH + output_along] = T(v[e]);
            } else {
                const auto v = right_quad(right, first + l_across, column0 + output_across);
                for (uint e = 0; e < 4; ++e) b_tile[l_across * B_PITCH + output_across + e] = T(v[e]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint l = 0; l < DEPTH; l += 8) {
            simdgroup_matrix<T, 8, 8> columns[4];
            for (uint i = 0; i < 4; ++i) simdgroup_load(columns[i], b_tile + l * B_PITCH + column_part + 8 * i, B_PITCH);
            for (uint j = 0; j < 4; ++j) {
                simdgroup_matrix<T, 8, 8> rows;
                simdgroup_load(rows, a_tile + (row_part + 8 * j) * A_PITCH + l, A_PITCH);
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
                    const float v = FINISHED(block[subgroup * 64u + e], column);
                    const uint at = (group.z * params.m + row) * params.n + column;
                    y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}
