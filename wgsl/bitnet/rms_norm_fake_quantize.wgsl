// y = fake_quantize(v) of v = x / sqrt(mean(x²) + eps) · gain per token, x [tokens, features]; added to y if `add` is not 0. One workgroup per token.
struct Params { tokens: u32, features: u32, add: u32, eps: f32, lambda: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;

fn number(token: u32, i: u32) -> f32 { return f32(x[token * params.features + i]); }

fn put(token: u32, quad: u32, v: vec4<f32>, scale: f32, finite: bool) {
    for (var j = 0u; j < 4u; j += 1u) {
        if 4u * quad + j < params.features {
            let at = token * params.features + 4u * quad + j;
            let quantized = fake_quantize(v[j], scale, finite);
            if params.add != 0u { y[at] = X(f32(y[at]) + quantized); } else { y[at] = X(quantized); }
        }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm_fake_quantize(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    clear_cells(ids);
    hold_row(token, ids);
    normalize_row(token, ids);
    let bits = largest_of_row(token, ids);
    let finite = bits < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 127.0);
    for (var h = 0u; h < HELD; h += 1u) { put(token, place(ids) + h * SHARERS, held[h], scale, finite); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += SHARERS) {
        put(token, quad, finished(fetched_numbers(token, quad), quad), scale, finite);
    }
}
