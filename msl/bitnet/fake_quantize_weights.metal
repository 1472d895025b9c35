// y = w + lambda·(w̃ - w) of a stack of matrices, where w̃ = clamp(round(w·s), -1, 1) / s and s = 1 / max(mean|w|, 1e-5) of a matrix, which goes to `scale`.
// A threadgroup takes TILE_X weights of a matrix. More in wgsl/bitnet/fake_quantize_weights.wgsl.
struct Params { uint length, sums, matrices, add; float count, lambda; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void fake_quantize_weights(
    constant Params& params   [[buffer(0)]],
    device const X* w         [[buffer(1)]],
    device const float* sums  [[buffer(2)]],
    device X* y               [[buffer(3)]],
    device float* scale       [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float tree[THREADS];
    const uint matrix_groups = max((params.length + TILE_X - 1u) / TILE_X, 1u);
    const uint matrix = flat_group(group, groups) / matrix_groups;
    if (matrix >= params.matrices) return;
    float sum = 0.0f;
    for (uint i = local; i < params.sums; i += THREADS) sum += sums[matrix * params.sums + i];
    const float mean = exact_quotient(fixed_tree(sum, tree, local), params.count);
    const bool finite = is_finite(mean);
    const float s = exact_quotient(1.0f, max(mean, 1e-5f));
    const float beta = exact_quotient(1.0f, s);

    const uint first = flat_group(group, groups) % matrix_groups * TILE_X;
    if (first == 0 && local == 0) scale[matrix] = as_type<float>(finite ? as_type<uint>(s) : 0x7fc00000u);
    const uint start = matrix * params.length;
    const uint end = start + min(first + TILE_X, params.length);
    for (uint at = start + first + local; at < end; at += THREADS) {
        const float v = float(w[at]);
        const int code = int(clamp(rint(v * s), -1.0f, 1.0f));
        const float rounded = as_type<float>(code == 0 ? 0u : as_type<uint>(float(code) * beta));
        const float warmed = params.lambda == 1.0f ? rounded : v + params.lambda * (rounded - v);
        const float made = as_type<float>(finite ? as_type<uint>(warmed) : 0x7fc00000u);
        y[at] = X(params.add != 0 ? float(y[at]) + made : made);
    }
}
