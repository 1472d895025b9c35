// Sixteen bytes of a dense matrix, four elements at a time: here four floats.
const QUADS: u32 = 1u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> { return bitcast<vec4<f32>>(v); }
