// Reduces `count` numbers for each of `outputs`; see wgsl/frames/reduce.wgsl. The op brings `identity()`, `load(params, v)`, `combine(a, b)` and
// `finish(params, acc)`, all of floats.
struct Params {
    uint outputs, count, lanes, chunks, inner_outputs, outer_stride, inner_stride, inner_count, outer_step, inner_step, parts, last, add;
    float divisor; uint mask, flip;
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void reduce(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device float* y          [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint index = flat_group(group, groups);
    const uint chunk = index % params.chunks;
    const uint together = THREADS / params.lanes;
    const bool columns = params.inner_step != 1;
    const uint step = columns ? together : 1u;
    const uint lane = local / step % params.lanes;
    const uint output = index / params.chunks * together + (columns ? local % together : local / params.lanes);
    float acc = identity();
    if (output < params.outputs) {
        const uint row = output / params.inner_outputs * params.outer_stride + output % params.inner_outputs * params.inner_stride;
        const uint first = chunk * params.lanes * TURNS;
        const uint end = min(first + params.lanes * TURNS, params.count);
        for (uint i = first + lane; i < end; i += params.lanes) {
            uint at = row + i * params.inner_step;
            if (params.inner_count != params.count) {
                at = row + i / params.inner_count * params.outer_step + i % params.inner_count * params.inner_step;
            }
            const float v = float(x[at]);
            acc = combine(acc, params.parts != 0 ? v : load(params, v));
        }
    }
    acc = over_lanes(acc, params.lanes, step, tree, local);
    if (lane != 0 || output >= params.outputs) return;
    const uint at = output * params.chunks + chunk;
    const float v = params.last != 0 ? finish(params, acc) : acc;
    y[at] = params.add != 0 ? y[at] + v : v;
}
