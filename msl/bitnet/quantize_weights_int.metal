// w [rows, columns] to codes of `bits` bits per group of `group_size` columns of a row. One threadgroup per group of a row. The formula, and what comes
// of groups that are tiny or not finite: wgsl/bitnet/quantize_weights_int.wgsl.
struct Params { uint rows, columns, words, groups, group_size, bits, symmetric; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_weights_int(
    constant Params& params   [[buffer(0)]],
    device const X* w         [[buffer(1)]],
    device uint* codes        [[buffer(2)]],
    device float* w_scale     [[buffer(3)]],
    device float* w_zero      [[buffer(4)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint3 groups  [[threadgroups_per_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[32];
    const Ids ids = {local, lane, subgroup};
    const uint index = flat_group(group, groups);
    if (index >= params.rows * params.groups) return;
    const uint row = index / params.groups;
    const uint first = (index - row * params.groups) * params.group_size;
    const uint end = min(first + params.group_size, params.columns);
    device const X* weights = w + row * params.columns;
    uint2 largest = uint2(0u);
    for (uint c = first + local; c < end; c += THREADS) {
        const uint v = as_type<uint>(float(weights[c]));
        const uint size = v & 0x7fffffffu;
        if (v == size) largest.x = max(largest.x, size);
        else largest.y = max(largest.y, size);
    }
    largest.x = group_max_u32(largest.x, scratch, ids);
    largest.y = group_max_u32(largest.y, scratch, ids);
    const float above = as_type<float>(largest.x);
    const float below = as_type<float>(largest.y);
    const float most = float((1u << params.bits) - 1u);
    const float half_range = float((1u << (params.bits - 1u)) - 1u);
    const bool symmetric = params.symmetric != 0;
    const float scale = exact_quotient(symmetric ? max(above, below) : above + below, symmetric ? half_range : most);
    const bool finite = max(largest.x, largest.y) < 0x7f800000u && is_finite(scale);
    // At least 2^-80.
    const bool steps = finite && scale >= 8.271806125530277e-25f;
    const float s = exact_quotient(1.0f, scale);
    const float zero = symmetric ? half_range + 1.0f : min(rint(below * s), most);

    const uint per_word = 32u / params.bits;
    const uint last = end == params.columns ? params.words : (first + params.group_size) / per_word;
    for (uint i = first / per_word + local; i < last; i += THREADS) {
        uint word = 0;
        for (uint e = 0; steps && e < per_word && per_word * i + e < params.columns; ++e) {
            const float code = rint(float(weights[per_word * i + e]) * s) + zero;
            word |= uint(clamp(code, 0.0f, most)) << (e * params.bits);
        }
        codes[row * params.words + i] = word;
    }
    if (local != 0) return;
    w_scale[index] = as_type<float>(finite ? as_type<uint>(steps ? scale : 0.0f) : 0x7fc00000u);
    w_zero[index] = steps ? zero : 0.0f;
}
