// y = x / sqrt(mean(x²) + eps) · gain for rows `first` .. `first + tokens` of x [.., features]. y is [tokens, features];
// the result is added to it if `add` is not 0. One workgroup per row.
struct Params { tokens: u32, features: u32, first: u32, add: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;

fn number(token: u32, i: u32) -> f32 { return f32(x[(params.first + token) * params.features + i]); }

fn put(token: u32, quad: u32, v: vec4<f32>) {
    for (var j = 0u; j < 4u; j += 1u) {
        if 4u * quad + j < params.features {
            let at = token * params.features + 4u * quad + j;
            if params.add != 0u { y[at] = X(f32(y[at]) + v[j]); } else { y[at] = X(v[j]); }
        }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    clear_cells(ids);
    hold_row(token, ids);
    normalize_row(token, ids);
    for (var h = 0u; h < HELD; h += 1u) { put(token, ids.local + h * THREADS, held[h]); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += THREADS) { put(token, quad, finished(fetched_numbers(token, quad), quad)); }
}
