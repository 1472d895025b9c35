// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, on the matrix units: wgsl/tensor/matmul_dense.wgsl says how the sides
// lie in memory. A threadgroup of four SIMD-groups makes 64 × 64 outputs, each SIMD-group a quarter of 32 × 32. DEPTH of l are in threadgroup memory at a
// time, the left side in rows, the right one in rows of l. `ALIGNED` says that lines are whole quads. The order in which eight products are added is
// the device's.
struct Params { uint m, n, k, a_transposed, b_transposed, a_batch, b_batch, add, biased, activation; };

// The distances of rows in threadgroup memory: DEPTH and 64 elements, and four more so that neighbouring rows start in different banks.
#define A_PITCH 20
#define B_PITCH 68

// A side: its lines, the elements of a line, and its first line. Elements at .. at + 4 of a line are 0 where there is none.
struct Side { uint lines, length, start; };

static inline X4 quad(device const X* from, Side side, uint line, uint at) {
    X4 v = X4(X(0.0f));
    if (line >= side.lines || at >= side.length) return v;
    const uint first = (side.start + line) * side.length + at;
    if (ALIGNED != 0) return *(device const X4*)(from + first);
    for (uint i = 0; i < 4; ++i) {
        if (at + i < side.length) v[i] = from[first + i];
    }
    return v;
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul(
    constant Params& params  [[buffer(0)]],
    device const X* a        [[buffer(1)]],
    device const X* b        [[buffer(2)]],
    device Y* y              [[buffer(3)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup X a_tile[TILE_Y * A_PITCH];
    threadgroup X b_tile[DEPTH * B_PITCH];
    threadgroup float block[4 * 64];
    const uint row0 = group.y * TILE_Y;
    const uint column0 = group.x * TILE_X;
    const uint row_part = subgroup / 2u * 32u;
    const uint column_part = subgroup % 2u * 32u;
    const bool a_along_k = params.a_transposed == 0;
    const bool b_along_k = params.b_transposed != 0;
    Side left, right;
    left.lines = a_along_k ? params.m : params.k;
    left.length = a_along_k ? params.k : params.m;
    left.start = group.z * params.a_batch;
    right.lines = b_along_k ? params.n : params.k;
    right.length = b_along_k ? params.k : params.n;
    right.start = group.z * params.b_batch;

    simdgroup_float8x8 acc[4][4];
    for (uint j = 0; j < 4; ++j)
        for (uint i = 0; i < 4; ++i) acc[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    for (uint first = 0; first < params.k; first += DEPTH) {
        for (uint i = local; i < 16u * DEPTH; i += THREADS) {
            // A quad along k, of one output, or of outputs, at one depth. Neighbouring threads read what lies side by side.
            const uint l_along = i % (DEPTH / 4u) * 4u, output_along = i / (DEPTH / 4u);
            const uint l_across = i / 16u, output_across = i % 16u * 4u;
            if (a_along_k) {
                const X4 v = quad(a, left, row0 + output_along, first + l_along);
                for (uint e = 0; e < 4; ++e) a_tile[output_along * A_PITCH + l_along + e] = v[e];
            } else {
                const X4 v = quad(a, left, first + l_across, row0 + output_across);
                for (uint e = 0; e < 4; ++e) a_tile[(output_across + e) * A_PITCH + l_across] = v[e];
            }
            if (b_along_k) {
                const X4 v = quad(b, right, column0 + output_along, first + l_along);
                for (uint e = 0; e < 4; ++e) b_tile[(l_along + e) * B_PITCH + output_along] = v[e];
            } else {
                const X4 v = quad(b, right, first + l_across, column0 + output_across);
                for (uint e = 0; e < 4; ++e) b_tile[l_across * B_PITCH + output_across + e] = v[e];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint l = 0; l < DEPTH; l += 8) {
            simdgroup_matrix<X, 8, 8> columns[4];
            for (uint i = 0; i < 4; ++i) simdgroup_load(columns[i], b_tile + l * B_PITCH + column_part + 8 * i, B_PITCH);
            for (uint j = 0; j < 4; ++j) {
                simdgroup_matrix<X, 8, 8> rows;
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
                    const float v = block[subgroup * 64u + e];
                    const uint at = (group.z * params.m + row) * params.n + column;
                    y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}
