// The gradient of cross_entropy: dx = dloss·(softmax(x) - (1 - smoothing)·[column is the target] - smoothing / columns) for rows of logits; see
// wgsl/tensor/cross_entropy_backward.wgsl.
struct Params { uint rows, columns, lanes, ignores, ignored, add; float smoothing; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void cross_entropy_backward(
    constant Params& params     [[buffer(0)]],
    device const X* logits      [[buffer(1)]],
    device const uint* targets  [[buffer(2)]],
    device const float* dloss   [[buffer(3)]],
    device X* dx                [[buffer(4)]],
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
    float2 acc = NOTHING;
    for (uint i = lane; i < columns; i += params.lanes) acc = combine(acc, float2(float(logits[first + i]), 1.0f));
    acc = over_lanes(acc, params.lanes, 1u, tree, local);
    if (row >= params.rows) return;
    const uint id = targets[row];
    const bool ignored = params.ignores != 0 && id == params.ignored;
    const float scale = 1.0f / acc.y;
    const float slope = dloss[row];
    for (uint i = lane; i < columns; i += params.lanes) {
        const uint at = first + i;
        const float wanted = (i == id ? 1.0f - params.smoothing : 0.0f) + params.smoothing / float(params.columns);
        const uint bits = as_type<uint>((exp_negative(float(logits[at]) - acc.x) * scale - wanted) * slope);
        // Numbers that are not finite by their bits, for Metal's fast math takes every number to be finite.
        const float v = as_type<float>(ignored ? 0u : id < params.columns ? bits : 0x7fc00000u);
        dx[at] = X(params.add != 0 ? float(dx[at]) + v : v);
    }
}
