// For finish.wgsl: products with quantized activations, divided by their row's scale.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
fn number(i: u32) -> f32 { return exact_quotient(x[i], x_scale[i / params.columns]); }
