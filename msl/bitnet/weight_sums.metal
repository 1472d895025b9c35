// sums[m, c] = (Σ w, Σ|w|) over the c-th chunk of THREADS² numbers of the m-th matrix, added in a fixed order. One threadgroup per chunk.
struct Params { uint length, chunks, matrices; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void weight_sums(
    constant Params& params  [[buffer(0)]],
    device const X* w        [[buffer(1)]],
    device float* sums       [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint index = flat_group(group, groups);
    if (index >= params.matrices * params.chunks) return;
    const uint start = index / params.chunks * params.length;
    const uint first = start + index % params.chunks * THREADS * THREADS;
    const uint end = min(first + THREADS * THREADS, start + params.length);
    float sum = 0.0f, sum_abs = 0.0f;
    for (uint i = first + local; i < end; i += THREADS) {
        const float v = float(w[i]);
        sum += v;
        sum_abs += fabs(v);
    }
    sum = fixed_tree(sum, tree, local);
    sum_abs = fixed_tree(sum_abs, tree, local);
    if (local == 0) {
        sums[2 * index] = sum;
        sums[2 * index + 1] = sum_abs;
    }
}
