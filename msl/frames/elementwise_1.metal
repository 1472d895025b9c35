// y[i] = forward(a[i]), on top of y if `add` is not 0. The op brings `float forward(float a)`. One thread per output.
struct Params { uint length, rank, n0, n1, n2, add, a_offset, a0, a1, a2, a3; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void elementwise_1(
    constant Params& params  [[buffer(0)]],
    device const X* a        [[buffer(1)]],
    device Y* y              [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    if (index >= params.length) return;
    const float v = forward(float(a[operand(params, index, params.a_offset, uint4(params.a0, params.a1, params.a2, params.a3))]));
    y[index] = Y(params.add != 0 ? float(y[index]) + v : v);
}
