// The gradient of softmax; see wgsl/tensor/softmax_backward.wgsl.
struct Params { uint rows, columns, lanes, logarithm, add; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void softmax_backward(
    constant Params& params  [[buffer(0)]],
    device const X* y        [[buffer(1)]],
    device const X* dy       [[buffer(2)]],
    device X* dx             [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    const bool logarithm = params.logarithm != 0;
    // Threads beyond the last row wait for the others.
    const uint columns = row < params.rows ? params.columns : 0u;
    float sum = identity();
    for (uint i = lane; i < columns; i += params.lanes) sum += float(dy[first + i]) * (logarithm ? 1.0f : float(y[first + i]));
    sum = over_lanes(sum, params.lanes, 1u, tree, local);
    for (uint i = lane; i < columns; i += params.lanes) {
        const uint at = first + i;
        const float slope = float(dy[at]);
        const float v = logarithm ? slope - exp_negative(float(y[at])) * sum : float(y[at]) * (slope - sum);
        dx[at] = X(params.add != 0 ? float(dx[at]) + v : v);
    }
}
