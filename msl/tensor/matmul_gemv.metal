// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, for few rows and sides whose lines run along k:
// wgsl/tensor/matmul_dense.wgsl says how they lie in memory. A SIMD-group makes a column of TILE_Y rows, of which those that there are are read.
struct Params { uint m, n, k, a_transposed, b_transposed, a_batch, b_batch, add, biased, activation; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul_gemv(
    constant Params& params  [[buffer(0)]],
    device const X* a        [[buffer(1)]],
    device const X* b        [[buffer(2)]],
    device Y* y              [[buffer(3)]] BIAS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    const Floats left = { a, params.m, params.k, group.z * params.a_batch, true };
    const Floats right = { b, params.n, params.k, group.z * params.b_batch, true };
    const uint column = group.x * TILE_X + subgroup;
    const uint row0 = group.y * TILE_Y;
    float sums[TILE_Y];
    for (uint r = 0; r < TILE_Y; ++r) sums[r] = 0.0f;
    for (uint at = 4 * lane; at < params.k; at += 128) {
        const float4 w = float4(load4(right, column, at));
        for (uint r = 0; r < TILE_Y; ++r) {
            if (row0 + r < params.m) sums[r] += dot(float4(load4(left, row0 + r, at)), w);
        }
    }
    // Lane r takes the sum of row r.
    float own = 0.0f;
    for (uint r = 0; r < TILE_Y; ++r) {
        const float sum = simd_sum(sums[r]);
        own = lane == r ? sum : own;
    }
    const uint row = row0 + lane;
    if (lane >= TILE_Y || row >= params.m || column >= params.n) return;
    const uint at = (group.z * params.m + row) * params.n + column;
    const float v = FINISHED(own, column);
    y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
}
