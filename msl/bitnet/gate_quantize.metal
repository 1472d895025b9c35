// v = act(gate) · up, normalised where there is a sub-norm, quantised per token; a threadgroup a row. See wgsl/bitnet/gate_quantize.wgsl.
struct Params { uint tokens, features, words, silu, normed; float eps; };

struct Value {
    device const float* gates;
    device const float* ups;
    device const float* gain;
    float inverse_rms;
    uint silu, normed;
    float gated(uint i) const {
        const float gate = gates[i];
        if (silu != 0) return gate / (1.0f + exp(-gate)) * ups[i];
        const float positive = max(gate, 0.0f);
        return positive * positive * ups[i];
    }
    float operator()(uint i) const { return normed != 0 ? gated(i) * inverse_rms * gain[i] : gated(i); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void gate_quantize(
    constant Params& params     [[buffer(0)]],
    device const float* source  [[buffer(1)]],
    device const float* gain    [[buffer(2)]],
    device uint* x              [[buffer(3)]],
    device float* x_scale       [[buffer(4)]],
    device int2* x_sum          [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]],
    uint lane    [[thread_index_in_simdgroup]],
    uint simd    [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[32];
    const uint token = flat_group(group, groups);
    if (token >= params.tokens) return;
    const Ids ids = Ids{local, lane, simd};
    device const float* gates = source + token * 2u * params.features;
    Value value = {gates, gates + params.features, gain, 1.0f, params.silu, params.normed};
    if (params.normed != 0) {
        float squares = 0.0f;
        for (uint i = local; i < params.features; i += THREADS) {
            const float v = value.gated(i);
            squares = fma(v, v, squares);
        }
        squares = group_sum_float(squares, scratch, ids);
        value.inverse_rms = 1.0f / sqrt(squares / float(params.features) + params.eps);
    }
    quantize_row(value, params.features, params.words, x, x_scale, x_sum, token, scratch, ids);
}
