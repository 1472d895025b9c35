// For quantize_block_float.wgsl: gated numbers of x [tokens, 2·features], whose rows have gates, then ups.
@group(0) @binding(2) var<storage, read> x: array<f32>;
fn number(token: u32, column: u32) -> f32 {
    let gate = 2u * token * params.features + column;
    return combine(x[gate], x[gate + params.features]);
}
