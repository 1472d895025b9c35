// Brings together the shares of an attention that attention_few.metal has left. One thread per quad. Shapes: wgsl/transformer/attention_combine.wgsl.
struct Params { uint run, heads, head_dim, longest, tokens, add, window; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention_combine(
    constant Params& params        [[buffer(0)]],
    device const uint2* runs       [[buffer(1)]],
    device const float4* x         [[buffer(2)]],
    device const float2* x_weight  [[buffer(3)]],
    device float* y                [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint quads = (params.head_dim + 3u) / 4u;
    const uint rows = params.tokens * params.heads;
    const uint row = index / quads;
    if (row >= rows) return;
    const uint quad = index % quads;
    const uint token = row / params.heads;
    const uint end = runs[token / params.run].y + token % params.run + 1u;
    const uint visible = min(end, params.longest);
    Merged so_far = {-1e30f, 0.0f, float4(0.0f)};
    for (uint share = (end - min(end, params.window)) / SPAN; share * SPAN < visible; ++share) {
        const uint at = share * rows + row;
        const float2 weight = x_weight[at];
        so_far = merged(so_far, weight.x, weight.y, x[at * quads + quad]);
    }
    put(y + row * params.head_dim, params.head_dim, quad, quotient(so_far), params.add != 0u);
}
