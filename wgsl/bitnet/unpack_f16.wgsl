// Reads the four codes of a quad in the f16 layout; see f16_planes.wgsl.
fn load(token: u32, quad: u32) -> vec4<i32> {
    let even = unpack2x16float(x[plane_index(token, 0u, quad)]);
    let odd = unpack2x16float(x[plane_index(token, 1u, quad)]);
    return vec4<i32>(vec4<f32>(even.x, odd.x, even.y, odd.y) * power_of_four(i32(quad & 3u)));
}
