// Rotary position embedding, rotating halves: (a, b) = (v[i], v[i + D/2]) becomes (a·cos - b·sin, b·cos + a·sin). Queries are rotated in place, keys
// are rotated into the cache, values are copied there. One thread per pair (a, b). Shapes and caches: wgsl/transformer/rope.wgsl.
struct Params { uint tokens, run, sequences, heads, kv_heads, head_dim, capacity; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void rope(
    constant Params& params        [[buffer(0)]],
    device const uint2* runs       [[buffer(1)]],
    device const float2* angles    [[buffer(2)]],
    device float* qkv              [[buffer(3)]],
    device C* keys                 [[buffer(4)]],
    device C* values               [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint half_dim = params.head_dim / 2u;
    const uint quads = (params.head_dim + 3u) / 4u;
    const uint heads = params.heads + 2u * params.kv_heads;
    const uint token = index / (heads * half_dim);
    if (token >= params.tokens) return;
    const uint head = index / half_dim % heads;
    const uint i = index % half_dim;
    const uint2 run = runs[token / params.run];
    const uint sequence = min(run.x, params.sequences - 1u);
    const uint position = run.y + token % params.run;
    if (position >= params.capacity) return;
    const uint first = (token * heads + head) * params.head_dim + i;
    const float a = qkv[first];
    const float b = qkv[first + half_dim];
    const float2 angle = angles[position * half_dim + i];
    const float2 rotated = float2(turned(a, -b, angle), turned(b, a, angle));
    if (head < params.heads) {
        qkv[first] = rotated.x;
        qkv[first + half_dim] = rotated.y;
    } else if (head < params.heads + params.kv_heads) {
        const uint row = (sequence * params.kv_heads + head - params.heads) * quads;
        const uint j = i + half_dim;
        keys[((row + i / 4u) * params.capacity + position) * 4u + i % 4u] = C(rotated.x);
        keys[((row + j / 4u) * params.capacity + position) * 4u + j % 4u] = C(rotated.y);
    } else {
        const uint row = sequence * params.kv_heads + head - params.heads - params.kv_heads;
        device C* value = values + (row * params.capacity + position) * quads * 4u;
        value[i] = C(a);
        value[i + half_dim] = C(b);
    }
}
