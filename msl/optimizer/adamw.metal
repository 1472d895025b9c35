// A step of AdamW, one thread per weight; see wgsl/optimizer/adamw.wgsl.
struct Params { uint length; float shrink, rate, root, beta1, beta2, eps; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void adamw(
    constant Params& params   [[buffer(0)]],
    device const X* gradient  [[buffer(1)]],
    device float* weights     [[buffer(2)]],
    device float* mean        [[buffer(3)]],
    device float* square      [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint i = flat_thread(group, groups, local);
    if (i >= params.length) return;
    const float g = float(gradient[i]);
    const float m = fma(params.beta1, mean[i], (1.0f - params.beta1) * g);
    const float v = fma(params.beta2, square[i], (1.0f - params.beta2) * g * g);
    mean[i] = m;
    square[i] = v;
    weights[i] = params.shrink * weights[i] - params.rate * m / fma(sqrt(v), params.root, params.eps);
}
