#include <metal_stdlib>
using namespace metal;
struct Params { uint rows; float factor; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void scale(
    constant Params& params   [[buffer(0)]],
    device const float* x     [[buffer(1)]],
    device const uint* bias   [[buffer(2)]],
    device Y* y               [[buffer(3)]],
    uint id [[thread_position_in_grid]])
{
    if (id < params.rows) y[id] = Y(x[id] * params.factor + float(bias[0]));
}
