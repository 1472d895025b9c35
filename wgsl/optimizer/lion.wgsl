// w = w·shrink - rate·sign(β1·m + (1 - β1)·g), then m = β2·m + (1 - β2)·g. One thread per weight.
struct Params { length: u32, shrink: f32, rate: f32, beta1: f32, beta2: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gradient: array<X>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn lion(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let g = f32(gradient[i]);
    let m = mean[i];
    let direction = fma(params.beta1, m, (1.0 - params.beta1) * g);
    weights[i] = params.shrink * weights[i] - params.rate * sign(direction);
    mean[i] = fma(params.beta2, m, (1.0 - params.beta2) * g);
}
