// loss = (1 - smoothing)·(ln Σ e^x - x[target]) + smoothing·(ln Σ e^x - mean x) for rows of logits; see wgsl/tensor/cross_entropy.wgsl.
struct Params { uint rows, columns, lanes, ignores, ignored, add; float smoothing; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void cross_entropy(
    constant Params& params     [[buffer(0)]],
    device const X* logits      [[buffer(1)]],
    device const uint* targets  [[buffer(2)]],
    device float* loss          [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float4 tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    // Threads beyond the last row wait for the others.
    const uint columns = row < params.rows ? params.columns : 0u;
    const float2 nothing = NOTHING;
    float4 acc = float4(nothing.x, nothing.y, 0.0f, 0.0f);
    for (uint i = lane; i < columns; i += params.lanes) {
        const float v = float(logits[first + i]);
        acc = combine(acc, float4(v, 1.0f, v, 0.0f));
    }
    acc = over_lanes(acc, params.lanes, 1u, tree, local);
    if (lane != 0 || row >= params.rows) return;
    const uint id = targets[row];
    float v = 0.0f;
    if (params.ignores == 0 || id != params.ignored) {
        v = as_type<float>(id < params.columns ? 0u : 0x7fc00000u);
        if (id < params.columns) {
            v = log_positive(acc.y) + (1.0f - params.smoothing) * (acc.x - float(logits[first + id]));
            // Without smoothing, a logit of -infinity counts for nothing.
            if (params.smoothing != 0.0f) v += params.smoothing * (acc.x - acc.z / float(params.columns));
        }
    }
    loss[row] = params.add != 0 ? loss[row] + v : v;
}
