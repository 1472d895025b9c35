// For finish.wgsl: numbers as they are.
@group(0) @binding(0) var<storage, read> x: array<X>;
fn number(i: u32) -> f32 { return f32(x[i]); }
