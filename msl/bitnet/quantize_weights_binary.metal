// w [rows, columns] to one bit per group of `group_size` columns of a row, or with the means of its matrix. One threadgroup per group of a row. More
// in wgsl/bitnet/quantize_weights_binary.wgsl.
struct Params { uint rows, columns, words, groups, group_size, matrix_rows, chunks; float count; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_weights_binary(
    constant Params& params   [[buffer(0)]],
    device const X* w         [[buffer(1)]],
    device const float* sums  [[buffer(2)]],
    device uint* codes        [[buffer(3)]],
    device float* w_scale     [[buffer(4)]],
    device float* w_zero      [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint index = flat_group(group, groups);
    if (index >= params.rows * params.groups) return;
    const uint row = index / params.groups;
    const uint first = (index - row * params.groups) * params.group_size;
    const uint end = min(first + params.group_size, params.columns);
    device const X* weights = w + row * params.columns;
    float sum = 0.0f, sum_abs = 0.0f, count = params.count;
    if (params.chunks != 0) {
        device const float* of_matrix = sums + 2 * (row / params.matrix_rows * params.chunks);
        for (uint i = local; i < params.chunks; i += THREADS) {
            sum += of_matrix[2 * i];
            sum_abs += of_matrix[2 * i + 1];
        }
    } else {
        count = float(end - first);
        for (uint c = first + local; c < end; c += THREADS) {
            const float v = float(weights[c]);
            sum += v;
            sum_abs += fabs(v);
        }
    }
    const float mean = exact_quotient(fixed_tree(sum, tree, local), count);
    const float mean_abs = exact_quotient(fixed_tree(sum_abs, tree, local), count);
    const bool finite = is_finite(mean_abs);
    const uint last = end == params.columns ? params.words : (first + params.group_size) / 32;
    for (uint i = first / 32 + local; i < last; i += THREADS) {
        uint word = 0;
        for (uint e = 0; finite && e < 32 && 32 * i + e < params.columns; ++e) word |= uint(float(weights[32 * i + e]) > mean) << e;
        codes[row * params.words + i] = word;
    }
    if (local != 0) return;
    const float doubled = 2.0f * mean_abs;
    // At least 2^-80.
    const uint scale = as_type<uint>(doubled >= 8.271806125530277e-25f ? doubled : 0.0f);
    w_scale[index] = as_type<float>(finite ? scale : 0x7fc00000u);
    w_zero[index] = 0.5f;
}
