// Combines what `lanes` threads have, `step` threads apart, in the order of wgsl/shared/lanes.wgsl. Each takes what its partner has, so that all
// lanes get the result; partners of one SIMD-group need no memory. All threads must call this together. A kernel that includes this defines
// `combine(a, b)`, which must not mind which comes first.
static inline float exchange(float v, uint mask) { return simd_shuffle_xor(v, ushort(mask)); }
static inline uint exchange(uint v, uint mask) { return simd_shuffle_xor(v, ushort(mask)); }
static inline uint2 exchange(uint2 v, uint mask) { return uint2(simd_shuffle_xor(v.x, ushort(mask)), simd_shuffle_xor(v.y, ushort(mask))); }
static inline float2 exchange(float2 v, uint mask) {
    return float2(simd_shuffle_xor(v.x, ushort(mask)), simd_shuffle_xor(v.y, ushort(mask)));
}
static inline float4 exchange(float4 v, uint mask) {
    const ushort to = ushort(mask);
    return float4(simd_shuffle_xor(v.x, to), simd_shuffle_xor(v.y, to), simd_shuffle_xor(v.z, to), simd_shuffle_xor(v.w, to));
}

template <typename Acc>
static inline Acc over_lanes(Acc v, uint lanes, uint step, threadgroup Acc* tree, uint local) {
    for (uint mask = lanes * step / 2u; mask >= step; mask /= 2u) {
        if (mask < 32u) {
            v = combine(v, exchange(v, mask));
            continue;
        }
        tree[local] = v;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const Acc other = tree[local ^ mask];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        v = combine(v, other);
    }
    return v;
}
