// y = x / sqrt(mean(x²) + eps) · gain, a workgroup a row, from row `first` of x on; rows of y are padded with zeros.
struct Params { tokens: u32, features: u32, first: u32, padded: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm(ids: Ids) {
    let token = flat_group(ids.group, ids.groups);
    if token >= params.tokens { return; }
    let row = (params.first + token) * params.features;
    var squares = 0.0;
    for (var i = ids.local; i < params.features; i += THREADS) { squares = fma(x[row + i], x[row + i], squares); }
    let inverse_rms = 1.0 / sqrt(group_sum_f32(squares, ids) / f32(params.features) + params.eps);
    for (var i = ids.local; i < params.padded; i += THREADS) {
        var v = 0.0;
        if i < params.features { v = x[row + i] * inverse_rms * gain[i]; }
        y[token * params.padded + i] = v;
    }
}
