// y = the elements of x · xᵀ squared, in reverse order; x is an 8 × 8 matrix of halves.
#include <metal_stdlib>
using namespace metal;

[[max_total_threads_per_threadgroup(32)]]
kernel void matrix_square(
    device const half* x [[buffer(0)]],
    device float* y      [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float block[64];
    simdgroup_half8x8 a;
    simdgroup_half8x8 b;
    simdgroup_load(a, x, 8);
    simdgroup_load(b, x, 8, ulong2(0, 0), true);
    simdgroup_float8x8 c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, block, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < 64; i += 32) y[i] = block[63 - i] * block[63 - i];
}
