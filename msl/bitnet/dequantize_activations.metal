// y[t, i] = xq[t, i] / x_scale[t]: activations in one of the two layouts as floats, y [tokens, features], on top of y if `add` is not 0.
// One thread per quad (four codes).
struct Params { uint tokens, features, words, add; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void dequantize_activations(
    constant Params& params      [[buffer(0)]],
    device const uint* x         [[buffer(1)]],
    device const float* x_scale  [[buffer(2)]],
    device Y* y                  [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint token = index / (params.words * 4u);
    const uint quad = index % (params.words * 4u);
    if (token >= params.tokens) return;
    const int4 codes = load(x, params.words, token, quad);
    for (uint j = 0; j < 4; ++j) {
        const uint i = quad * 4u + j;
        if (i >= params.features) break;
        const uint at = token * params.features + i;
        const float v = exact_quotient(float(codes[j]), x_scale[token]);
        y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
    }
}
