// The gradient of layer_norm or an RMS norm at x, and what the gradient of the weight needs of every row; see wgsl/tensor/norm_rows_backward.wgsl.
struct Params { uint rows, columns, lanes, center, add; float eps; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void norm_rows_backward(
    constant Params& params     [[buffer(0)]],
    device const X* x           [[buffer(1)]],
    device const float* weight  [[buffer(2)]],
    device const X* dy          [[buffer(3)]],
    device X* dx                [[buffer(4)]],
    device float* statistics    [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float2 tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    // Threads beyond the last row wait for the others.
    const uint columns = row < params.rows ? params.columns : 0u;
    const float count = float(params.columns);
    // Σ x and Σ g, of which an RMS norm needs none.
    float2 acc = float2(0.0f);
    for (uint i = lane; i < columns; i += params.lanes) acc += float2(float(x[first + i]), float(dy[first + i]) * weight[i]);
    float2 means = over_lanes(acc, params.lanes, 1u, tree, local) / float2(count);
    if (params.center == 0) means = float2(0.0f);
    // Σ d² and Σ g·d for the deviations d.
    acc = float2(0.0f);
    for (uint i = lane; i < columns; i += params.lanes) {
        const float v = float(x[first + i]) - means.x;
        acc += float2(v, float(dy[first + i]) * weight[i]) * float2(v);
    }
    acc = over_lanes(acc, params.lanes, 1u, tree, local) / float2(count);
    const float inverse = 1.0f / sqrt(acc.x + params.eps);
    for (uint i = lane; i < columns; i += params.lanes) {
        const uint at = first + i;
        const float n = (float(x[at]) - means.x) * inverse;
        const float v = inverse * (float(dy[at]) * weight[i] - means.y - n * (acc.y * inverse));
        dx[at] = X(params.add != 0 ? float(dx[at]) + v : v);
    }
    if (lane != 0 || row >= params.rows) return;
    statistics[2 * row] = means.x;
    statistics[2 * row + 1] = inverse;
}
