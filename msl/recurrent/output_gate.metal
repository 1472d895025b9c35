// x[token, i] · σ(gate), in place. One thread per number. Shapes: wgsl/recurrent/output_gate.wgsl.
struct Params { uint length, columns, stride; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void output_gate(
    constant Params& params    [[buffer(0)]],
    device const float* gates  [[buffer(1)]],
    device float* x            [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    if (index >= params.length) return;
    const uint token = index / params.columns;
    x[index] *= sigmoid(gates[(token + 1) * params.stride - params.columns + index % params.columns]);
}
