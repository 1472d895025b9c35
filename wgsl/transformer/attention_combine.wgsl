// Combines the shares of an attention that attention.wgsl has split by positions: y = Σ_s w_s·x_s / Σ_s w_s, w_s = total_s · e^(largest_s - largest),
// where largest is the maximum of all largest_s. x is [splits, heads, head_dim], x_weight [splits, heads] pairs (largest_s, total_s), y
// [heads, head_dim]; `heads` counts the heads of all tokens. The result is added to y if
// `add` is not 0. One thread per output.
struct Params { heads: u32, head_dim: u32, splits: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> x_weight: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_combine(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let head = index / params.head_dim;
    if head >= params.heads { return; }
    var largest = x_weight[head].x;
    for (var s = 1u; s < params.splits; s += 1u) { largest = max(largest, x_weight[s * params.heads + head].x); }
    var sum = 0.0;
    var total = 0.0;
    for (var s = 0u; s < params.splits; s += 1u) {
        let share = x_weight[s * params.heads + head];
        let weight = share.y * exp_negative(share.x - largest);
        total += weight;
        sum = fma(weight, x[s * params.heads * params.head_dim + index], sum);
    }
    if params.add != 0u { y[index] += sum / total; } else { y[index] = sum / total; }
}
