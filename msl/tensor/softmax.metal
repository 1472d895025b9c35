// The softmax of every row, or its logarithm; see wgsl/tensor/softmax.wgsl. One with a mask of the caller's is in WGSL alone.
struct Params { uint rows, columns, lanes, queries; int beyond; uint logarithm, add, n1, n2, m0, m1, m2, m3; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void softmax(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device X* y              [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float2 tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    uint columns = params.columns;
    uint seen = columns;
    if (params.queries != 0) seen = uint(clamp(int(row % params.queries) + 1 + params.beyond, 0, int(columns)));
    // Threads beyond the last row wait for the others.
    if (row >= params.rows) columns = seen = 0;
    float2 acc = NOTHING;
    for (uint i = lane; i < seen; i += params.lanes) acc = combine(acc, float2(float(x[first + i]), 1.0f));
    acc = over_lanes(acc, params.lanes, 1u, tree, local);
    const float logarithm = log_positive(acc.y);
    const float scale = 1.0f / acc.y;
    for (uint i = lane; i < columns; i += params.lanes) {
        const uint at = first + i;
        const float shifted = float(x[at]) - acc.x;
        float v = params.logarithm != 0 ? shifted - logarithm : exp_negative(shifted) * scale;
        if (i >= seen) v = 0.0f;
        y[at] = X(params.add != 0 ? float(y[at]) + v : v);
    }
}
