// For matrix_of_expert.wgsl: activations in floats.
fn block_scale(scale: vec4<f32>) -> vec4<f32> { return scale; }

fn stored(total: f32, token: u32, row: u32) -> f32 { return nan_unless(chosen[token] < params.experts, total); }
