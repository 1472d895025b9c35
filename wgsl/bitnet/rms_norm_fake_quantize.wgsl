// y = fake_quantize(v) of v = x / sqrt(mean(x²) + eps) · gain per token, x [tokens, features]; added to y if `add` is not 0. One workgroup per token.
struct Params { tokens: u32, features: u32, add: u32, eps: f32, lambda: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;

fn element(token: u32, i: u32) -> f32 { return f32(x[token * params.features + i]); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm_fake_quantize(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    let inverse = exact_inverse_rms(token, ids);
    // The bits of floats >= 0 are ordered as the floats are, with NaN above infinity.
    var bits = 0u;
    for (var i = ids.local; i < params.features; i += THREADS) {
        bits = max(bits, bitcast<u32>(element(token, i) * inverse * gain[i]) & 0x7fffffffu);
    }
    bits = group_max_u32(bits, ids);
    let finite = bits < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 127.0);
    for (var i = ids.local; i < params.features; i += THREADS) {
        let at = token * params.features + i;
        let v = fake_quantize(element(token, i) * inverse * gain[i], scale, finite);
        if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
    }
}
