// Sums and maxima over a threadgroup of at most 1024 threads. All threads must call these together; all get the result.
#define SUBGROUPS (THREADS / 32u)

static inline uint group_max_u32(uint v, threadgroup uint* scratch, Ids ids) {
    const uint part = simd_max(v);
    if (ids.lane == 0) scratch[ids.subgroup] = part;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint other = ids.lane < SUBGROUPS ? scratch[ids.lane] : 0u;
    const uint total = simd_max(other);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

// Two sums with one pair of barriers. They are modulo 2^32, so they serve for signed numbers too. `scratch` holds 64 numbers.
static inline uint2 group_sum2_u32(uint2 v, threadgroup uint* scratch, Ids ids) {
    const uint2 part = uint2(simd_sum(v.x), simd_sum(v.y));
    if (ids.lane == 0) {
        scratch[ids.subgroup] = part.x;
        scratch[32u + ids.subgroup] = part.y;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint2 other = uint2(0u);
    if (ids.lane < SUBGROUPS) other = uint2(scratch[ids.lane], scratch[32u + ids.lane]);
    const uint2 total = uint2(simd_sum(other.x), simd_sum(other.y));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

static inline float group_sum_f32(float v, threadgroup uint* scratch, Ids ids) {
    const float part = simd_sum(v);
    if (ids.lane == 0) scratch[ids.subgroup] = as_type<uint>(part);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float other = ids.lane < SUBGROUPS ? as_type<float>(scratch[ids.lane]) : 0.0f;
    const float total = simd_sum(other);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}
