// What Apple's compiler takes. tests/front.rs plants faults in this text.
#include <metal_stdlib>
using namespace metal;
#define THREADS 64u

struct Params { uint rows, columns; float factor; };

struct Ids { uint local, lane; };

constant uint PRIMES[4] = {2, 3, 5, 7};

// A line of numbers, 0 beyond its end.
struct Line {
    device const float* from;
    uint length;
    float operator()(uint i) const { return i < length ? from[i] : 0.0f; }
};

template <typename T>
static inline T twice(T v) { return v + v; }

template <typename Element>
static inline float total(Element element, uint count) {
    float sum = 0.0f;
    for (uint i = 0; i < count; ++i) sum += element(i);
    return sum;
}

static inline float tree(float v, threadgroup float* staged, Ids ids) {
    staged[ids.local] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return staged[ids.local ^ 1u];
}

// at file scope

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void sound(
    constant Params& params   [[buffer(0)]],
    device const float* x     [[buffer(1)]],
    device const half4* h     [[buffer(2)]],
    device float* y           [[buffer(3)]],
    device atomic_uint* seen  [[buffer(4)]],
    uint2 group   [[threadgroup_position_in_grid]],
    uint2 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    static_assert(THREADS == 64u, "two SIMD-groups");
    threadgroup float staged[THREADS];
    threadgroup half4 quads[THREADS];
    const uint row = group.y * groups.x + group.x;
    if (row >= params.rows) return;
    quads[local] = h[local];
    float sum = total(Line{x + row * params.columns, params.columns}, params.columns) * params.factor;
    // in the kernel
    simdgroup_float8x8 sums = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_half8x8 a;
    simdgroup_load(a, (threadgroup const half*)quads, 8, ulong2(0), true);
    simdgroup_multiply_accumulate(sums, a, a, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(sums, staged, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    sum += tree(simd_sum(sum), staged, Ids{local, lane});
    const uint2 words = as_type<uint2>(h[local]);
    const float4 wide = float4(h[local]) + float4(twice(float2(1.0f, sum)), float2(as_type<half2>(words.x)));
    if (lane == 0u) atomic_fetch_add_explicit(seen, popcount(words.y), memory_order_relaxed);
    y[row] = clamp(dot(wide, wide.wzyx), 0.0f, float(PRIMES[subgroup])) + quad_shuffle_xor(sum, ushort(1));
}
