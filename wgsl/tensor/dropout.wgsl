// y[i] = factor·x[i] where the random word of i is at least `threshold`, else 0; added to y if `add` is not 0. With `relu`, what is dropped is max(x, 0),
// or where dy is bound as `x`, its gradient at `at`. One thread per four elements, which share a counter.
struct Params { length: u32, seed_low: u32, seed_high: u32, threshold: u32, factor: f32, relu: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> at: array<X>;
@group(0) @binding(2) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dropout(group: Group, ids: Ids) {
    let quad = flat_thread(group, ids);
    let first = 4u * quad;
    if first >= params.length { return; }
    let words = philox(vec4<u32>(quad, 0u, 0u, 0u), vec2<u32>(params.seed_low, params.seed_high));
    for (var i = 0u; i < 4u && first + i < params.length; i += 1u) {
        var v = 0.0;
        if words[i] >= params.threshold && (params.relu == 0u || f32(at[first + i]) > 0.0) { v = params.factor * f32(x[first + i]); }
        if params.add != 0u { y[first + i] = X(f32(y[first + i]) + v); } else { y[first + i] = X(v); }
    }
}
