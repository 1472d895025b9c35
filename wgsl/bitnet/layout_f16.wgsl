// Writes the four codes of a quad in the f16 layout; see f16_planes.wgsl.
fn store(token: u32, quad: u32, codes: vec4<i32>) {
    let scaled = vec4<f32>(codes) * power_of_four(-i32(quad & 3u));
    x[plane_index(token, 0u, quad)] = pack2x16float(scaled.xz);
    x[plane_index(token, 1u, quad)] = pack2x16float(scaled.yw);
}
