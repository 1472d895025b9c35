// Sixteen bytes of a dense matrix, four elements at a time: sixteen bytes, to be scaled by the row.
const QUADS: u32 = 4u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(v[q])); }
