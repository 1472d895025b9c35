struct Params { uint length; float factor; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void scale(
    constant Params& params [[buffer(0)]],
    device const X* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    uint id [[thread_position_in_grid]])
{
    if (id < params.length) y[id] = params.factor * float(x[id]);
}
