// y = x / sqrt(mean(x²) + eps) · gain for rows `first` .. `first + tokens` of x [.., features]. y is [tokens, padded], padded with zeros. One
// workgroup per row.
struct Params { tokens: u32, features: u32, first: u32, padded: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn element(token: u32, i: u32) -> f32 { return x[(params.first + token) * params.features + i]; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    let inverse_rms = exact_inverse_rms(token, ids);
    for (var i = ids.local; i < params.padded; i += THREADS) {
        var v = 0.0;
        if i < params.features { v = element(token, i) * inverse_rms * gain[i]; }
        y[token * params.padded + i] = v;
    }
}
