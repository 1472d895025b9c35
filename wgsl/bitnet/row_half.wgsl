// Keeps four codes of a row in workgroup memory in the half layout (half_planes.wgsl), for norm_bitlinear.wgsl.
fn store(quad: u32, codes: vec4<i32>) {
    // 4^-f, made of bits, since exp2 may be a unit off.
    let scaled = vec4<f32>(codes) * bitcast<f32>((127u - 2u * (quad & 3u)) << 23u);
    x[quad] = pack2x16float(scaled.xz);
    x[4u * PLANE + quad] = pack2x16float(scaled.yw);
}
