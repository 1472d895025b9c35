// Absmean quantisation of w [rows, columns]: s = 1 / max(mean|w|, 1e-5), code = clamp(round(w·s), -1, 1) + 1, w_scale = 1 / s for every row. One
// thread per word of sixteen codes. More in wgsl/bitnet/quantize_weights.wgsl.
struct Params { uint rows, columns, words, sums; float count; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_weights(
    constant Params& params   [[buffer(0)]],
    device const X* w         [[buffer(1)]],
    device const float* sums  [[buffer(2)]],
    device uint* codes        [[buffer(3)]],
    device float* w_scale     [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    float sum = 0.0f;
    for (uint i = local; i < params.sums; i += THREADS) sum += sums[i];
    const float mean = exact_quotient(fixed_tree(sum, tree, local), params.count);
    const bool finite = is_finite(mean);
    const float s = exact_quotient(1.0f, max(mean, 1e-5f));

    const uint index = flat_thread(group, groups, local);
    const uint row = index / params.words;
    if (row >= params.rows) return;
    const uint column0 = index % params.words * 16u;
    uint word = ZEROS;
    for (uint e = 0; finite && e < 16 && column0 + e < params.columns; ++e) {
        const int value = int(clamp(rint(float(w[row * params.columns + column0 + e]) * s), -1.0f, 1.0f));
        word = (word & ~(3u << code_bit(e))) | (uint(value + 1) << code_bit(e));
    }
    codes[index] = word;
    const uint scale = as_type<uint>(exact_quotient(1.0f, s));
    if (column0 == 0) w_scale[row] = as_type<float>(finite ? scale : 0x7fc00000u);
}
