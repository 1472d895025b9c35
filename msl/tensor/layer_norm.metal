// y = (x - mean) / sqrt(variance + eps) · weight + bias for rows of x; see wgsl/tensor/layer_norm.wgsl.
struct Params { uint rows, columns, lanes, add; float eps; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void layer_norm(
    constant Params& params     [[buffer(0)]],
    device const X* x           [[buffer(1)]],
    device const float* weight  [[buffer(2)]],
    device const float* bias    [[buffer(3)]],
    device X* y                 [[buffer(4)]],
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
    const float count = float(params.columns);
    float sum = identity();
    for (uint i = lane; i < columns; i += params.lanes) sum += float(x[first + i]);
    const float mean = over_lanes(sum, params.lanes, 1u, tree, local) / count;
    float squares = identity();
    for (uint i = lane; i < columns; i += params.lanes) {
        const float v = float(x[first + i]) - mean;
        squares += v * v;
    }
    const float inverse = 1.0f / sqrt(over_lanes(squares, params.lanes, 1u, tree, local) / count + params.eps);
    for (uint i = lane; i < columns; i += params.lanes) {
        const uint at = first + i;
        const float v = (float(x[at]) - mean) * inverse * weight[i] + bias[i];
        y[at] = X(params.add != 0 ? float(y[at]) + v : v);
    }
}
