// Reads what layout_int8.wgsl wrote.
fn load(token: u32, group: u32) -> vec4<i32> {
    return unpack4xI8(x[token * params.words * 4u + group]);
}
