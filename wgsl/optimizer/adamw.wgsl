// m = β1·m + (1 - β1)·g, v = β2·v + (1 - β2)·g², w = w·shrink - rate·m / (√v·root + ε): `shrink`, `rate` and `root` have weight decay and the
// corrections of the first steps in them. One thread per weight.
struct Params { length: u32, shrink: f32, rate: f32, root: f32, beta1: f32, beta2: f32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gradient: array<X>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;
@group(0) @binding(3) var<storage, read_write> square: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn adamw(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let g = f32(gradient[i]);
    let m = fma(params.beta1, mean[i], (1.0 - params.beta1) * g);
    let v = fma(params.beta2, square[i], (1.0 - params.beta2) * g * g);
    mean[i] = m;
    square[i] = v;
    weights[i] = params.shrink * weights[i] - params.rate * m / fma(sqrt(v), params.root, params.eps);
}
