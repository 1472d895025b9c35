// delta = Σ y·dy of every row [rows, columns]. A row is shared by `lanes` threads.
struct Params { uint rows, columns, lanes; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention_delta(
    constant Params& params  [[buffer(0)]],
    device const X* y        [[buffer(1)]],
    device const X* dy       [[buffer(2)]],
    device float* delta      [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    // Threads beyond the last row wait for the others.
    const uint columns = row < params.rows ? params.columns : 0u;
    float sum = identity();
    for (uint i = lane; i < columns; i += params.lanes) sum = fma(float(y[first + i]), float(dy[first + i]), sum);
    sum = over_lanes(sum, params.lanes, 1u, tree, local);
    if (lane == 0 && row < params.rows) delta[row] = sum;
}
