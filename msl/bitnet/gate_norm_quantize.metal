// v = act(gate) · up per token, where a row of source [tokens, 2·features] is gate, then up; n = v / sqrt(mean(v²) + eps) · gain, quantized as in
// wgsl/bitnet/quantize_row.wgsl. One threadgroup per token.
struct Params { uint tokens, features, words; float eps; };

struct Element {
    device const float* gates;
    device const float* ups;
    float operator()(uint i) const { return combine(gates[i], ups[i]); }
};

struct Value {
    Element element;
    device const float* gain;
    float inverse;
    float operator()(uint i) const { return element(i) * inverse * gain[i]; }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void gate_norm_quantize(
    constant Params& params     [[buffer(0)]],
    device const float* source  [[buffer(1)]],
    device const float* gain    [[buffer(2)]],
    device uint* x              [[buffer(3)]],
    device float* x_scale       [[buffer(4)]],
    device int2* x_sum          [[buffer(5)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[64];
    const uint token = flat_group(group, groups);
    if (token >= params.tokens) return;
    const Ids ids = Ids{local, lane, subgroup};
    device const float* gates = source + token * 2u * params.features;
    const Element element = {gates, gates + params.features};
    const Value value = {element, gain, exact_inverse_rms(element, params.features, params.eps, scratch, ids)};
    quantize_row(value, params.features, params.words, x, x_scale, x_sum, token, scratch, ids);
}
