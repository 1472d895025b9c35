// Absmean quantization of w [matrices, rows, columns], a matrix at a time: s = 1 / max(mean|w|, 1e-5), code = clamp(round(w·s), -1, 1) + 1, w_scale =
// 1 / s for every row. One thread per word of sixteen codes, whole threadgroups per matrix. More in wgsl/bitnet/quantize_weights.wgsl.
struct Params { uint rows, columns, words, sums, matrices; float count; };

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
    const uint words = params.rows * params.words;
    const uint matrix_groups = (words + THREADS - 1u) / THREADS;
    const uint matrix = flat_group(group, groups) / matrix_groups;
    if (matrix >= params.matrices) return;
    float sum = 0.0f;
    for (uint i = local; i < params.sums; i += THREADS) sum += sums[matrix * params.sums + i];
    const float mean = exact_quotient(fixed_tree(sum, tree, local), params.count);
    const bool finite = is_finite(mean);
    const float s = exact_quotient(1.0f, max(mean, 1e-5f));

    const uint index = flat_group(group, groups) % matrix_groups * THREADS + local;
    if (index >= words) return;
    const uint row = matrix * params.rows + index / params.words;
    const uint column0 = index % params.words * 16u;
    uint word = ZEROS;
    for (uint e = 0; finite && e < 16 && column0 + e < params.columns; ++e) {
        const int value = int(clamp(rint(float(w[row * params.columns + column0 + e]) * s), -1.0f, 1.0f));
        word = (word & ~(3u << code_bit(e))) | (uint(value + 1) << code_bit(e));
    }
    codes[matrix * words + index] = word;
    const uint scale = as_type<uint>(exact_quotient(1.0f, s));
    if (column0 == 0) w_scale[row] = as_type<float>(finite ? scale : 0x7fc00000u);
}
