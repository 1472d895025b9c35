// v = x / sqrt(mean(x²) + eps) · gain, quantised per token; a threadgroup a row.
struct Params { uint tokens, features, words; float eps; };

struct Value {
    device const X* row;
    device const float* gain;
    float inverse_rms;
    float operator()(uint i) const { return float(row[i]) * inverse_rms * gain[i]; }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void rms_norm_quantize(
    constant Params& params   [[buffer(0)]],
    device const X* source    [[buffer(1)]],
    device const float* gain  [[buffer(2)]],
    device uint* x            [[buffer(3)]],
    device float* x_scale     [[buffer(4)]],
    device int2* x_sum        [[buffer(5)]],
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
    float squares = 0.0f;
    for (uint i = local; i < params.features; i += THREADS) {
        const float v = float(source[token * params.features + i]);
        squares = fma(v, v, squares);
    }
    squares = group_sum_float(squares, scratch, ids);
    const float inverse_rms = 1.0f / sqrt(squares / float(params.features) + params.eps);
    const Value value = {source + token * params.features, gain, inverse_rms};
    quantize_row(value, params.features, params.words, x, x_scale, x_sum, token, scratch, ids);
}
