// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, for few rows, where lines of the left side run along k and those of
// the right side along columns: wgsl/tensor/matmul_dense.wgsl says how they lie in memory. A thread takes four columns of TILE_Y rows, and every
// SLICES-th quad of l; those with the same columns add up as shared/lanes does.
struct Params { uint m, n, k, a_transposed, b_transposed, a_batch, b_batch, add, biased, activation; };

#define QUADS (TILE_X / 4u)
#define SLICES (THREADS / QUADS)

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul_gemv_columns(
    constant Params& params  [[buffer(0)]],
    device const X* a        [[buffer(1)]],
    device const X* b        [[buffer(2)]],
    device Y* y              [[buffer(3)]] BIAS_ARGUMENT,
    uint3 group [[threadgroup_position_in_grid]],
    uint local  [[thread_index_in_threadgroup]])
{
    threadgroup float4 tree[THREADS];
    const Floats left = { a, params.m, params.k, group.z * params.a_batch, true };
    const Floats right = { b, params.k, params.n, group.z * params.b_batch, false };
    const uint slice = local / QUADS;
    const uint column = group.x * TILE_X + 4u * (local % QUADS);
    const uint row0 = group.y * TILE_Y;
    float4 sums[TILE_Y];
    for (uint r = 0; r < TILE_Y; ++r) sums[r] = float4(0.0f);
    for (uint l = 4u * slice; l < params.k; l += 4u * SLICES) {
        float4 w[4];
        for (uint i = 0; i < 4; ++i) w[i] = float4(load4(right, l + i, column));
        for (uint r = 0; r < TILE_Y; ++r) {
            if (row0 + r >= params.m) break;
            const float4 v = float4(load4(left, row0 + r, l));
            sums[r] += v.x * w[0] + v.y * w[1] + v.z * w[2] + v.w * w[3];
        }
    }
    for (uint r = 0; r < TILE_Y; ++r) {
        const uint row = row0 + r;
        if (row >= params.m) break;
        const float4 own = over_lanes(sums[r], SLICES, QUADS, tree, local);
        // Slice r writes row r.
        if (slice != r) continue;
        for (uint i = 0; i < 4; ++i) {
            if (column + i >= params.n) continue;
            const uint at = (group.z * params.m + row) * params.n + column + i;
            const float v = FINISHED(own[i], column + i);
            y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
        }
    }
}
