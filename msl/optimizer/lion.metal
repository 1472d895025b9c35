// A step of Lion, one thread per weight; see wgsl/optimizer/lion.wgsl.
struct Params { uint length; float shrink, rate, beta1, beta2; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void lion(
    constant Params& params   [[buffer(0)]],
    device const X* gradient  [[buffer(1)]],
    device float* weights     [[buffer(2)]],
    device float* mean        [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint i = flat_thread(group, groups, local);
    if (i >= params.length) return;
    const float g = float(gradient[i]);
    const float m = mean[i];
    const float direction = fma(params.beta1, m, (1.0f - params.beta1) * g);
    weights[i] = params.shrink * weights[i] - params.rate * sign(direction);
    mean[i] = fma(params.beta2, m, (1.0f - params.beta2) * g);
}
