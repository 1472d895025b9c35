// y[i] = activation(NUMBER(i) + bias[i mod columns]), added to y if `add` is not 0, as wgsl/tensor/finish.wgsl. A part before says which number that is, and
// what it is read from.
struct Params { uint length, columns, add, biased, activation; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void finish(
    constant Params& params [[buffer(0)]] NUMBERS_ARGUMENTS,
    device const Y* bias    [[buffer(2)]],
    device Y* y             [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint i = flat_thread(group, groups, local);
    if (i >= params.length) return;
    float v = NUMBER(i);
    if (params.biased != 0) v += float(bias[i % params.columns]);
    v = activated(v, params.activation);
    y[i] = Y(params.add != 0 ? float(y[i]) + v : v);
}
