// The four elements of 16 bytes of a dense matrix in f32; q is 0.
const QUADS: u32 = 1u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> { return bitcast<vec4<f32>>(v); }
