// y[t, i] = xq[t, i] / x_scale[t]: activations in one of the two layouts as floats, y [tokens, features], on top of y if `add` is not 0.
// One thread per quad (four codes).
struct Params { tokens: u32, features: u32, words: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> x_scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dequantize_activations(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let token = index / (params.words * 4u);
    let quad = index % (params.words * 4u);
    if token >= params.tokens { return; }
    let codes = load(token, quad);
    for (var j = 0u; j < 4u; j += 1u) {
        let i = quad * 4u + j;
        if i < params.features {
            let at = token * params.features + i;
            let v = exact_quotient(f32(codes[j]), x_scale[token]);
            if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
        }
    }
}
