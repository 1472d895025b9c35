// y[row] = Σ x[row, i]·w[i], one threadgroup per row.
#include <metal_stdlib>
using namespace metal;
#define THREADS 128u
#define SIMDS 4u

struct Params { uint rows, columns; };

static inline int product(device const int* a, device const int* b, uint i) { return a[i] * b[i]; }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void row_sums(
    constant Params& params [[buffer(0)]],
    device const int* x     [[buffer(1)]],
    device const int* w     [[buffer(2)]],
    device int* y           [[buffer(3)]],
    uint row   [[threadgroup_position_in_grid]],
    uint local [[thread_index_in_threadgroup]],
    uint lane  [[thread_index_in_simdgroup]],
    uint simd  [[simdgroup_index_in_threadgroup]])
{
    threadgroup int parts[SIMDS];
    int sum = 0;
    for (uint i = local; i < params.columns; i += THREADS) sum += product(x + row * params.columns, w, i);
    const int part = simd_sum(sum);
    if (lane == 0) parts[simd] = part;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int total = 0;
    for (uint i = 0; i < SIMDS; ++i) total += parts[i];
    if (local == 0) y[row] = total;
}
