// w = w·shrink - rate·sign(β1·m + (1 - β1)·g), then m = β2·m + (1 - β2)·g. One thread per four weights.
struct Params { length: u32, shrink: f32, rate: f32, beta1: f32, beta2: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gradient: array<X>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;

fn put(i: u32, g: f32, w: f32, m: f32) {
    if i >= params.length { return; }
    let direction = fma(params.beta1, m, (1.0 - params.beta1) * g);
    weights[i] = params.shrink * w - params.rate * sign(direction);
    mean[i] = fma(params.beta2, m, (1.0 - params.beta2) * g);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn lion(group: Group, ids: Ids) {
    let mine = four(group, ids);
    let at = mine.at;
    let v = vec4<f32>(mean[at.x], mean[at.y], mean[at.z], mean[at.w]);
    put(mine.all.x, mine.gradient.x, mine.weight.x, v.x);
    put(mine.all.y, mine.gradient.y, mine.weight.y, v.y);
    put(mine.all.z, mine.gradient.z, mine.weight.z, v.z);
    put(mine.all.w, mine.gradient.w, mine.weight.w, v.w);
}
