// m = β1·m + (1 - β1)·g, v = β2·v + (1 - β2)·g², w = w·shrink - rate·m / (√v·root + ε): `shrink`, `rate` and `root` have weight decay and the
// corrections of the first steps in them. One thread per four weights, which lie as far apart
// as a workgroup has threads.
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
    let all = flat_group(group) * TILE_X + ids.local + THREADS * vec4<u32>(0u, 1u, 2u, 3u);
    let at = min(all, vec4<u32>(params.length - 1u));
    // All are read before one is written, so that their loads wait together.
    let g = vec4<f32>(f32(gradient[at.x]), f32(gradient[at.y]), f32(gradient[at.z]), f32(gradient[at.w]));
    let w = vec4<f32>(weights[at.x], weights[at.y], weights[at.z], weights[at.w]);
    let m = vec4<f32>(mean[at.x], mean[at.y], mean[at.z], mean[at.w]);
    let v = vec4<f32>(square[at.x], square[at.y], square[at.z], square[at.w]);
    put(all.x, g.x, w.x, m.x, v.x);
    put(all.y, g.y, w.y, m.y, v.y);
    put(all.z, g.z, w.z, m.z, v.z);
    put(all.w, g.w, w.w, m.w, v.w);
}
