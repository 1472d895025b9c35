// Absmean quantization of w [rows, columns] per group of `group_words` words of sixteen columns. One threadgroup per group of a row. More in
// wgsl/bitnet/quantize_weights_by_group.wgsl.
struct Params { uint rows, columns, words, groups, group_words; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_weights_by_group(
    constant Params& params   [[buffer(0)]],
    device const X* w         [[buffer(1)]],
    device uint* codes        [[buffer(2)]],
    device float* w_scale     [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint index = flat_group(group, groups);
    if (index >= params.rows * params.groups) return;
    const uint row = index / params.groups;
    const uint first_word = (index - row * params.groups) * params.group_words;
    const uint first = 16u * first_word;
    const uint end = min(first + 16u * params.group_words, params.columns);
    float sum = 0.0f;
    for (uint c = first + local; c < end; c += THREADS) sum += fabs(float(w[row * params.columns + c]));
    const float mean = exact_quotient(fixed_tree(sum, tree, local), float(end - first));
    const bool finite = is_finite(mean);
    const float s = exact_quotient(1.0f, max(mean, 1e-5f));
    const uint last = end == params.columns ? params.words : first_word + params.group_words;
    for (uint i = first_word + local; i < last; i += THREADS) {
        uint word = ZEROS;
        for (uint e = 0; finite && e < 16 && 16 * i + e < params.columns; ++e) {
            const int value = int(clamp(rint(float(w[row * params.columns + 16 * i + e]) * s), -1.0f, 1.0f));
            word = (word & ~(3u << code_bit(e))) | (uint(value + 1) << code_bit(e));
        }
        codes[row * params.words + i] = word;
    }
    const uint scale = as_type<uint>(exact_quotient(1.0f, s));
    if (local == 0) w_scale[index] = as_type<float>(finite ? scale : 0x7fc00000u);
}
