// The q-th four elements of 16 bytes of a dense matrix in bf16: eight upper halves of floats.
const QUADS: u32 = 2u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> {
    let w = select(v.xy, v.zw, q == 1u);
    return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));
}
