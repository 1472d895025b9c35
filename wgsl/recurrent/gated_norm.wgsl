// Heads v of x [tokens, heads, features] become v / sqrt(mean(v²) + eps) · gain · silu(gate); gates are the last heads · features numbers of rows of
// `stride`. Where heads are `regrouped`, head h of y is one of its key head's, which is h % key_heads. One workgroup per head.
struct Params { groups: u32, heads: u32, key_heads: u32, features: u32, stride: u32, regrouped: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gated_norm(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let token = index / params.heads;
    let head = index % params.heads;
    var squares = 0.0;
    for (var i = ids.local; i < params.features; i += THREADS) {
        let v = x[index * params.features + i];
        squares = fma(v, v, squares);
    }
    sums[ids.local] = squares;
    workgroupBarrier();
    for (var size = THREADS / 2u; size > 0u; size /= 2u) {
        if ids.local < size { sums[ids.local] += sums[ids.local + size]; }
        workgroupBarrier();
    }
    let factor = 1.0 / sqrt(sums[0] / f32(params.features) + params.eps);
    var place = head;
    if params.regrouped != 0u { place = head % params.key_heads * (params.heads / params.key_heads) + head / params.key_heads; }
    let gate = (token + 1u) * params.stride - (params.heads - head) * params.features;
    let output = (token * params.heads + place) * params.features;
    for (var i = ids.local; i < params.features; i += THREADS) {
        y[output + i] = x[index * params.features + i] * factor * gain[i] * forward(gates[gate + i]);
    }
}
