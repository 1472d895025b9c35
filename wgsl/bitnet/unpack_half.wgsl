// Reads the half layout; see half_planes.wgsl.
fn load(token: u32, group: u32) -> vec4<i32> {
    let even = unpack2x16float(x[place(token, 0u, group)]);
    let odd = unpack2x16float(x[place(token, 1u, group)]);
    return vec4<i32>(vec4<f32>(even.x, odd.x, even.y, odd.y) * power_of_four(i32(group & 3u)));
}
