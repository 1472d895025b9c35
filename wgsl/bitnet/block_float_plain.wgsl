// For quantize_block_float.wgsl: the numbers of x [tokens, features].
@group(0) @binding(2) var<storage, read> x: array<X>;
fn number(token: u32, column: u32) -> f32 { return f32(x[token * params.features + column]); }
