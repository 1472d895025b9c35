// v = act(gate) · up per token, where a row of source [tokens, 2·features] is gate, then up; quantised as in quantize_row.wgsl. One workgroup per
// token. relu² overflows f16, so all is f32.
struct Params { tokens: u32, features: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> x_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> x_sum: array<vec2<i32>>;

struct Fetched { gate: vec4<f32>, up: vec4<f32> }
fn source_quad(at: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(source[at + within(i)], source[at + within(i + 1u)], source[at + within(i + 2u)], source[at + within(i + 3u)]);
}
fn fetch(token: u32, quad: u32) -> Fetched {
    let gates = token * 2u * params.features;
    return Fetched(source_quad(gates, 4u * quad), source_quad(gates + params.features, 4u * quad));
}
fn numbers(v: Fetched, quad: u32) -> vec4<f32> {
    let gated = vec4<f32>(combine(v.gate.x, v.up.x), combine(v.gate.y, v.up.y), combine(v.gate.z, v.up.z), combine(v.gate.w, v.up.w));
    return cut(gated, quad);
}
fn finished(v: vec4<f32>, quad: u32) -> vec4<f32> { return v; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gate_quantize(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token < params.tokens {
        clear_cells(ids);
        hold_row(token, ids);
        quantize_row(token, ids);
    }
}
