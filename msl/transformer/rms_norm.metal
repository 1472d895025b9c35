// y = x / sqrt(mean(x²) + eps) · gain for rows `first` .. `first + tokens` of x [.., features]. y is [tokens, features];
// the result is added to it if `add` is not 0. One threadgroup per row.
struct Params { uint tokens, features, first, add; float eps; };

struct Element {
    device const X* row;
    float operator()(uint i) const { return float(row[i]); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void rms_norm(
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
    const Element element = {x + (params.first + token) * params.features};
    const float inverse = exact_inverse_rms(element, params.features, params.eps, scratch, Ids{local, lane, subgroup});
    for (uint i = local; i < params.features; i += THREADS) {
        const uint at = token * params.features + i;
        const float v = element(i) * inverse * gain[i];
        y[at] = X(params.add != 0 ? float(y[at]) + v : v);
    }
}
