// Absmax quantization of activations [tokens, features] per token, into one of the two layouts. One threadgroup per token. The formula is in
// wgsl/bitnet/quantize_row.wgsl.
struct Params { uint tokens, features, words; };

struct Value {
    device const X* row;
    float operator()(uint i) const { return float(row[i]); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_activations(
    constant Params& params  [[buffer(0)]],
    device const X* source   [[buffer(1)]],
    device uint* x           [[buffer(2)]],
    device float* x_scale    [[buffer(3)]],
    device int2* x_sum       [[buffer(4)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[64];
    const uint token = flat_group(group, groups);
    if (token >= params.tokens) return;
    const Value value = {source + token * params.features};
    quantize_row(value, params.features, params.words, x, x_scale, x_sum, token, scratch, Ids{local, lane, subgroup});
}
