// The q-th four elements of 16 bytes of a dense matrix in int8: sixteen integers, which the row's scale multiplies.
const QUADS: u32 = 4u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(v[q])); }
