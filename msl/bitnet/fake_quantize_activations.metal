// y = fake_quantize(x) of every row of x; see wgsl/bitnet/fake_quantize_activations.wgsl.
struct Params { uint rows, columns, lanes, add; float lambda; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void fake_quantize_activations(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device X* y              [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup uint tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    // Threads beyond the last row wait for the others.
    const uint columns = row < params.rows ? params.columns : 0u;
    uint bits = identity();
    for (uint i = lane; i < columns; i += params.lanes) bits = combine(bits, load(float(x[first + i])));
    bits = over_lanes(bits, params.lanes, 1u, tree, local);
    const bool finite = bits < 0x7f800000u;
    const float scale = absmax_scale(as_type<float>(finite ? bits : 0u), 127.0f);
    for (uint i = lane; i < columns; i += params.lanes) {
        const uint at = first + i;
        const float v = fake_quantize(float(x[at]), scale, params.lambda, finite);
        y[at] = X(params.add != 0 ? float(y[at]) + v : v);
    }
}
