// v = x / sqrt(mean(x²) + eps) · gain, quantised per token; a workgroup a row. The formula is in quantize_row.wgsl.
struct Params { tokens: u32, features: u32, words: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> source: array<X>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<u32>;
@group(0) @binding(3) var<storage, read_write> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> x_sum: array<vec2<i32>>;

var<private> inverse_rms: f32;

fn value(token: u32, i: u32) -> f32 { return f32(source[token * params.features + i]) * inverse_rms * gain[i]; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm_quantize(ids: Ids) {
    let token = flat_group(ids.group, ids.groups);
    if token < params.tokens {
        var squares = 0.0;
        for (var i = ids.local; i < params.features; i += THREADS) {
            let v = f32(source[token * params.features + i]);
            squares = fma(v, v, squares);
        }
        inverse_rms = 1.0 / sqrt(group_sum_f32(squares, ids) / f32(params.features) + params.eps);
        quantize_row(token, ids);
    }
}
