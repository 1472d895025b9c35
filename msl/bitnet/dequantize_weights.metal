// y = (code - 1) · scale of the row's group: a thread a word of sixteen codes.
struct Params { uint rows, columns, words, groups, group_size; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void dequantize_weights(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device Y* y                  [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint at = flat_group(group, groups) * THREADS + local;
    const uint row = at / params.words;
    if (row >= params.rows) return;
    const uint first = at % params.words * 16u;
    const uint word = codes[at];
    for (uint e = 0; e < 16 && first + e < params.columns; ++e) {
        const int value = int((word >> code_bit(e)) & 3u) - 1;
        const float scale = w_scale[row * params.groups + (first + e) / params.group_size];
        y[row * params.columns + first + e] = Y(float(value) * scale);
    }
}
