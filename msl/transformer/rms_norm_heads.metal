// Query and key heads v of qkv become v / sqrt(mean(v²) + eps) · gain, where they are. One threadgroup per head. Shapes:
// wgsl/transformer/rms_norm_heads.wgsl.
struct Params { uint tokens, heads, kv_heads, features; float eps; };

struct Element {
    device const float* row;
    float operator()(uint i) const { return row[i]; }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void rms_norm_heads(
    constant Params& params         [[buffer(0)]],
    device const float* query_gain  [[buffer(1)]],
    device const float* key_gain    [[buffer(2)]],
    device float* qkv               [[buffer(3)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[64];
    const uint index = flat_group(group, groups);
    const uint heads = params.heads + params.kv_heads;
    const uint token = index / heads;
    if (token >= params.tokens) return;
    const uint head = index % heads;
    device float* row = qkv + (token * (heads + params.kv_heads) + head) * params.features;
    device const float* gain = head < params.heads ? query_gain : key_gain;
    const float inverse = exact_inverse_rms(Element{row}, params.features, params.eps, scratch, Ids{local, lane, subgroup});
    // A thread reads and writes the same numbers, and others have read what they need when `inverse` is known.
    for (uint i = local; i < params.features; i += THREADS) row[i] = row[i] * inverse * gain[i];
}
