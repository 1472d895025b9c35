// y = fake_quantize(v) of v = x / sqrt(mean(x²) + eps) · gain per token, x [tokens, features]. One threadgroup per token. More in
// wgsl/bitnet/rms_norm_fake_quantize.wgsl.
struct Params { uint tokens, features, add; float eps, lambda; };

struct Element {
    device const X* row;
    float operator()(uint i) const { return float(row[i]); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void rms_norm_fake_quantize(
    constant Params& params   [[buffer(0)]],
    device const X* x         [[buffer(1)]],
    device const float* gain  [[buffer(2)]],
    device X* y               [[buffer(3)]],
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
    const Element element = {x + token * params.features};
    const float inverse = exact_inverse_rms(element, params.features, params.eps, scratch, ids);
    uint bits = 0;
    for (uint i = local; i < params.features; i += THREADS) bits = max(bits, as_type<uint>(element(i) * inverse * gain[i]) & 0x7fffffffu);
    bits = group_max_u32(bits, scratch, ids);
    const bool finite = bits < 0x7f800000u;
    const float scale = absmax_scale(as_type<float>(finite ? bits : 0u), 127.0f);
    for (uint i = local; i < params.features; i += THREADS) {
        const uint at = token * params.features + i;
        const float v = fake_quantize(element(i) * inverse * gain[i], scale, params.lambda, finite);
        y[at] = X(params.add != 0 ? float(y[at]) + v : v);
    }
}
