// y[t, c] = Σ_j weights[t, j]·x[t, j, c], on top of y if `add` is not 0. One thread per output. See wgsl/bitnet/experts_sum.wgsl.
struct Params { uint tokens, used, columns, add; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void experts_sum(
    constant Params& params      [[buffer(0)]],
    device const float* x        [[buffer(1)]],
    device const float* weights  [[buffer(2)]],
    device float* y              [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint token = index / params.columns;
    if (token >= params.tokens) return;
    const uint column = index % params.columns;
    float sum = 0.0f;
    for (uint j = 0; j < params.used; ++j) {
        const uint at = token * params.used + j;
        sum = fma(weights[at], x[at * params.columns + column], sum);
    }
    y[index] = params.add != 0 ? y[index] + sum : sum;
}
