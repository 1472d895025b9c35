// v = momentum·v + g, g being the gradient and decay·w; w -= rate·v, or rate·(g + momentum·v) with `nesterov`. One thread per weight.
struct Params { length: u32, rate: f32, momentum: f32, decay: f32, nesterov: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gradient: array<X>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> velocity: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sgd(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let w = weights[i];
    let g = fma(params.decay, w, f32(gradient[i]));
    let v = fma(params.momentum, velocity[i], g);
    velocity[i] = v;
    let step = select(v, fma(params.momentum, v, g), params.nesterov != 0u);
    weights[i] = fma(-params.rate, step, w);
}
