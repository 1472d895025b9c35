// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, on the simdgroup matrices: wgsl/tensor/matmul_dense.wgsl says how the sides
// lie in memory.
struct Params { uint m, n, k, a_transposed, b_transposed, a_batch, b_batch, add, biased, activation; };

static inline X4 right_quad(Floats side, uint line, uint at) { return load4(side, line, at); }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void matmul(
    constant Params& params  [[buffer(0)]],
    device const X* a        [[buffer(1)]],
    device const X* b        [[buffer(2)]],
    device Y* y              [[buffer(3)]] BIAS_ARGUMENT,
    uint3 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup X a_tile[TILE_Y * A_PITCH];
    threadgroup X b_tile[DEPTH * B_PITCH];
    threadgroup float block[4 * 64];
    Floats left, right;
    left.from = a;
    left.along_k = params.a_transposed == 0;
    left.lines = left.along_k ? params.m : params.k;
    left.length = left.along_k ? params.k : params.m;
    left.start = group.z * params.a_batch;
    right.from = b;
    right.along_k = params.b_transposed != 0;
    right.lines = right.along_k ? params.n : params.k;
    right.length = right.along_k ? params.k : params.n;
    right.start = group.z * params.b_batch;
    multiply<X>(params, left, right, y BIAS_GIVEN, a_tile, b_tile, block, group, local, lane, subgroup);
}
