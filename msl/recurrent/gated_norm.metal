// Heads v of x become v / sqrt(mean(v²) + eps) · gain · silu(gate). One threadgroup per head. Shapes: wgsl/recurrent/gated_norm.wgsl.
struct Params { uint groups, heads, key_heads, features, stride, regrouped; float eps; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void gated_norm(
    constant Params& params    [[buffer(0)]],
    device const float* x      [[buffer(1)]],
    device const float* gain   [[buffer(2)]],
    device const float* gates  [[buffer(3)]],
    device float* y            [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float sums[THREADS];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const uint token = index / params.heads;
    const uint head = index % params.heads;
    device const float* row = x + index * params.features;
    float squares = 0.0f;
    for (uint i = local; i < params.features; i += THREADS) squares = fma(row[i], row[i], squares);
    sums[local] = squares;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint size = THREADS / 2; size > 0; size /= 2) {
        if (local < size) sums[local] += sums[local + size];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float factor = 1.0f / sqrt(sums[0] / float(params.features) + params.eps);
    uint place = head;
    if (params.regrouped != 0) place = head % params.key_heads * (params.heads / params.key_heads) + head / params.key_heads;
    device const float* gate = gates + (token + 1) * params.stride - (params.heads - head) * params.features;
    device float* output = y + (token * params.heads + place) * params.features;
    for (uint i = local; i < params.features; i += THREADS) output[i] = row[i] * factor * gain[i] * forward(gate[i]);
}
