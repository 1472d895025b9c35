// y = x / sqrt(mean(x²) + eps) · gain for rows `first` .. `first + tokens` of x [.., features]. y is [tokens, features];
// the result is added to it if `add` is not 0. One workgroup per row.
struct Params { tokens: u32, features: u32, first: u32, add: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn element(token: u32, i: u32) -> f32 { return x[(params.first + token) * params.features + i]; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    let inverse = exact_inverse_rms(token, ids);
    for (var i = ids.local; i < params.features; i += THREADS) {
        let at = token * params.features + i;
        let v = element(token, i) * inverse * gain[i];
        if params.add != 0u { y[at] += v; } else { y[at] = v; }
    }
}
