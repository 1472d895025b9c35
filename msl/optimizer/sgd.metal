// A step of gradient descent with momentum, one thread per weight; see wgsl/optimizer/sgd.wgsl.
struct Params { uint length; float rate, momentum, decay; uint nesterov; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void sgd(
    constant Params& params   [[buffer(0)]],
    device const X* gradient  [[buffer(1)]],
    device float* weights     [[buffer(2)]],
    device float* velocity    [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint i = flat_thread(group, groups, local);
    if (i >= params.length) return;
    const float w = weights[i];
    const float g = fma(params.decay, w, float(gradient[i]));
    const float v = fma(params.momentum, velocity[i], g);
    velocity[i] = v;
    const float step = params.nesterov != 0 ? fma(params.momentum, v, g) : v;
    weights[i] = fma(-params.rate, step, w);
}
