// y = H·x / √block of every `block` neighbors: see wgsl/bitnet/hadamard.wgsl. Partners of one SIMD-group need no memory.
struct Params { uint length, block; float scale; uint add, in_place; };

static inline float4 exchange(float4 v, uint mask) {
    const float x = simd_shuffle_xor(v.x, ushort(mask));
    const float y = simd_shuffle_xor(v.y, ushort(mask));
    const float z = simd_shuffle_xor(v.z, ushort(mask));
    const float w = simd_shuffle_xor(v.w, ushort(mask));
    return float4(x, y, z, w);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void hadamard(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device X* y              [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    // Steps take turns in two halves, so that one barrier a step is enough.
    threadgroup float4 staged[2 * THREADS];
    const uint first = flat_group(group, groups) * TILE_X + local;
    float4 v;
    for (uint i = 0; i < 4; ++i) {
        const uint at = first + i * THREADS;
        v[i] = 0.0f;
        if (at < params.length) v[i] = params.in_place != 0 ? float(y[at]) : float(x[at]);
    }
    uint part = 0;
    for (uint h = 1; h < min(params.block, THREADS); h *= 2) {
        float4 other;
        if (h < 32u) {
            other = exchange(v, h);
        } else {
            staged[part + local] = v;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            other = staged[part + (local ^ h)];
            part = THREADS - part;
        }
        v = (local & h) != 0 ? other - v : v + other;
    }
    if (params.block > THREADS) v = float4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
    if (params.block > 2 * THREADS) v = float4(v.x + v.z, v.y + v.w, v.x - v.z, v.y - v.w);
    for (uint i = 0; i < 4; ++i) {
        const uint at = first + i * THREADS;
        const float made = v[i] * params.scale;
        if (at < params.length) y[at] = X(params.add != 0 ? float(y[at]) + made : made);
    }
}
