// v = momentum·v + g, g being the gradient and decay·w; w -= rate·v, or rate·(g + momentum·v) with `nesterov`. One thread per four weights, which lie as far
// apart as a workgroup has threads.
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
    let all = flat_group(group) * TILE_X + ids.local + THREADS * vec4<u32>(0u, 1u, 2u, 3u);
    let at = min(all, vec4<u32>(params.length - 1u));
    // All are read before one is written, so that their loads wait together.
    let g = vec4<f32>(f32(gradient[at.x]), f32(gradient[at.y]), f32(gradient[at.z]), f32(gradient[at.w]));
    let w = vec4<f32>(weights[at.x], weights[at.y], weights[at.z], weights[at.w]);
    let v = vec4<f32>(velocity[at.x], velocity[at.y], velocity[at.z], velocity[at.w]);
    put(all.x, g.x, w.x, v.x);
    put(all.y, g.y, w.y, v.y);
    put(all.z, g.z, w.z, v.z);
    put(all.w, g.w, w.w, v.w);
}
