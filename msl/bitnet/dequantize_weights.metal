// y[r, c] = (code[r, c] - 1) · w_scale[r, c / group_size]: ternary weights as floats, y [rows, columns], on top of y if `add` is
// not 0. One thread per word of sixteen codes.
struct Params { uint rows, columns, words, groups, group_size, add; };

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
    const uint index = flat_thread(group, groups, local);
    const uint row = index / params.words;
    if (row >= params.rows) return;
    const uint column0 = index % params.words * 16u;
    const uint word = codes[index];
    for (uint e = 0; e < 16 && column0 + e < params.columns; ++e) {
        const int value = int((word >> code_bit(e)) & 3u) - 1;
        const float scale = w_scale[row * params.groups + (column0 + e) / params.group_size];
        const uint at = row * params.columns + column0 + e;
        const float v = float(value) * scale;
        y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
    }
}
