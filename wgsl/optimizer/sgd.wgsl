// v = momentum·v + g, g being the gradient and decay·w; w -= rate·v, or rate·(g + momentum·v) with `nesterov`. One thread per four weights.
struct Params { length: u32, rate: f32, momentum: f32, decay: f32, nesterov: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gradient: array<X>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> velocity: array<f32>;

fn put(i: u32, gradient: f32, w: f32, before: f32) {
    if i >= params.length { return; }
    let g = fma(params.decay, w, gradient);
    let v = fma(params.momentum, before, g);
    velocity[i] = v;
    let step = select(v, fma(params.momentum, v, g), params.nesterov != 0u);
    weights[i] = fma(-params.rate, step, w);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sgd(group: Group, ids: Ids) {
    let mine = four(group, ids);
    let at = mine.at;
    let v = vec4<f32>(velocity[at.x], velocity[at.y], velocity[at.z], velocity[at.w]);
    put(mine.all.x, mine.gradient.x, mine.weight.x, v.x);
    put(mine.all.y, mine.gradient.y, mine.weight.y, v.y);
    put(mine.all.z, mine.gradient.z, mine.weight.z, v.z);
    put(mine.all.w, mine.gradient.w, mine.weight.w, v.w);
}
