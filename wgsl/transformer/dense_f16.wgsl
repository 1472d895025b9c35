// The q-th four elements of 16 bytes of a dense matrix in f16: eight halves.
const QUADS: u32 = 2u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> {
    let w = select(v.xy, v.zw, q == 1u);
    return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
}
