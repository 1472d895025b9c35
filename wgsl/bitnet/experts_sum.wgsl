// y[t, c] = Σ_j weights[t, j]·x[t, j, c], on top of y if `add` is not 0: the sum of the experts that a token uses, in their order. x is
// [tokens, used, columns]. One thread per output.
struct Params { tokens: u32, used: u32, columns: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn experts_sum(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let token = index / params.columns;
    if token >= params.tokens { return; }
    let column = index % params.columns;
    var sum = 0.0;
    for (var j = 0u; j < params.used; j += 1u) {
        let at = token * params.used + j;
        sum = fma(weights[at], x[at * params.columns + column], sum);
    }
    if params.add != 0u { y[index] += sum; } else { y[index] = sum; }
}
