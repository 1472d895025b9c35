// Combines the shares of an attention that attention.metal has split by positions: y = Σ_s w_s·x_s / Σ_s w_s, w_s = total_s · e^(largest_s -
// largest). One thread per output. Shapes are in wgsl/transformer/attention_combine.wgsl.
struct Params { uint heads, head_dim, splits, add; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention_combine(
    constant Params& params        [[buffer(0)]],
    device const float* x          [[buffer(1)]],
    device const float2* x_weight  [[buffer(2)]],
    device float* y                [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint head = index / params.head_dim;
    if (head >= params.heads) return;
    float largest = x_weight[head].x;
    for (uint s = 1; s < params.splits; ++s) largest = max(largest, x_weight[s * params.heads + head].x);
    float sum = 0.0f;
    float total = 0.0f;
    for (uint s = 0; s < params.splits; ++s) {
        const float2 share = x_weight[s * params.heads + head];
        const float weight = share.y * exp_negative(share.x - largest);
        total += weight;
        sum = fma(weight, x[s * params.heads * params.head_dim + index], sum);
    }
    y[index] = params.add != 0 ? y[index] + sum / total : sum / total;
}
