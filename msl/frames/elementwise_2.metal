// y[i] = combine(a[i], b[i]), on top of y if `add` is not 0; a and b are broadcast. The op brings `float combine(float a, float b)`. One thread per
// output.
struct Params { uint length, rank, n0, n1, n2, add, a_offset, a0, a1, a2, a3, b_offset, b0, b1, b2, b3; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void elementwise_2(
    constant Params& params  [[buffer(0)]],
    device const X* a        [[buffer(1)]],
    device const X* b        [[buffer(2)]],
    device Y* y              [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    if (index >= params.length) return;
    const float a_value = float(a[operand(params, index, params.a_offset, uint4(params.a0, params.a1, params.a2, params.a3))]);
    const float b_value = float(b[operand(params, index, params.b_offset, uint4(params.b0, params.b1, params.b2, params.b3))]);
    const float v = combine(a_value, b_value);
    y[index] = Y(params.add != 0 ? float(y[index]) + v : v);
}
