// The q-th four elements of 16 bytes of a dense matrix in int8: sixteen integers, which the row's scale multiplies.
const QUADS: u32 = 4u;
fn quad(v: vec4<u32>, q: u32) -> vec4<f32> {
    // As the last bits of 2^23 + 128 + v, since GPUs convert integers at a fraction of the rate of other instructions.
    let w = v[q] ^ 0x80808080u;
    let bytes = vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(0xffu);
    return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - vec4<f32>(8388736.0);
}
