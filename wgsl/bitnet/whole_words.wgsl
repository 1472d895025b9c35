// Activations whose lines are whole words.
@group(0) @binding(0) var<storage, read> a: array<vec4<X>>;

// Elements at .. at + 4 of a line that there are.
fn left_quad(batch: u32, line: u32, at: u32) -> vec4<f32> { return vec4<f32>(a[(line * params.k + at) / 4u]); }
