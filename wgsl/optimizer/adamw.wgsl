// m = β1·m + (1 - β1)·g, v = β2·v + (1 - β2)·g², w = w·shrink - rate·m / (√v·root + ε): `shrink`, `rate` and `root` have weight decay and the
// corrections of the first steps in them. One thread per four weights.
struct Params { length: u32, shrink: f32, rate: f32, root: f32, beta1: f32, beta2: f32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gradient: array<X>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;
@group(0) @binding(3) var<storage, read_write> square: array<f32>;

fn put(i: u32, g: f32, w: f32, old_mean: f32, old_square: f32) {
    if i >= params.length { return; }
    let m = fma(params.beta1, old_mean, (1.0 - params.beta1) * g);
    let v = fma(params.beta2, old_square, (1.0 - params.beta2) * g * g);
    mean[i] = m;
    square[i] = v;
    weights[i] = params.shrink * w - params.rate * m / fma(sqrt(v), params.root, params.eps);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn adamw(group: Group, ids: Ids) {
    let mine = four(group, ids);
    let at = mine.at;
    let m = vec4<f32>(mean[at.x], mean[at.y], mean[at.z], mean[at.w]);
    let v = vec4<f32>(square[at.x], square[at.y], square[at.z], square[at.w]);
    put(mine.all.x, mine.gradient.x, mine.weight.x, m.x, v.x);
    put(mine.all.y, mine.gradient.y, mine.weight.y, m.y, v.y);
    put(mine.all.z, mine.gradient.z, mine.weight.z, m.z, v.z);
    put(mine.all.w, mine.gradient.w, mine.weight.w, m.w, v.w);
}
