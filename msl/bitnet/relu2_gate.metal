// y = relu(gate)² · up, where a row of x [tokens, 2·features] is gate, then up. y is [tokens, features]. One thread per output.
struct Params { uint tokens, features; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void relu2_gate(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device float* y          [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint token = index / params.features;
    if (token >= params.tokens) return;
    const uint gate_index = token * 2u * params.features + index % params.features;
    const float gate = max(float(x[gate_index]), 0.0f);
    y[index] = gate * gate * float(x[gate_index + params.features]);
}
