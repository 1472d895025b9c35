// Writes the half layout; see half_planes.wgsl.
fn store(token: u32, group: u32, codes: vec4<i32>) {
    let scaled = vec4<f32>(codes) * power_of_four(-i32(group & 3u));
    x[place(token, 0u, group)] = pack2x16float(scaled.xz);
    x[place(token, 1u, group)] = pack2x16float(scaled.yw);
}
