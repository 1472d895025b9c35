// y = relu(gate)² · up, where a row of x is gate, then up.
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
    const uint at = flat_group(group, groups) * THREADS + local;
    const uint token = at / params.features;
    if (token >= params.tokens) return;
    const uint i = token * 2u * params.features + at % params.features;
    const float gate = max(float(x[i]), 0.0f);
    y[at] = gate * gate * float(x[i + params.features]);
}
