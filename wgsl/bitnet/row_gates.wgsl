// For shared/row.wgsl: rows of act(gate) · up, where a row of the kernel's `source` [tokens, 2·features] is gate, then up. relu² overflows f16, so all is f32.
struct Fetched { gate: vec4<f32>, up: vec4<f32> }
fn fetch(token: u32, quad: u32) -> Fetched {
    let gates = token * 2u * params.features;
    return Fetched(source_quad(gates, quad), source_quad(gates + params.features, quad));
}
fn numbers(v: Fetched, quad: u32) -> vec4<f32> {
    let gated = vec4<f32>(combine(v.gate.x, v.up.x), combine(v.gate.y, v.up.y), combine(v.gate.z, v.up.z), combine(v.gate.w, v.up.w));
    return cut(gated, quad);
}
