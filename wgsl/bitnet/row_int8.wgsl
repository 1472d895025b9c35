// For norm_bitlinear.wgsl: a row in workgroup memory in the int8 layout.
fn store(quad: u32, codes: vec4<i32>, ids: Ids) {
    let bytes = vec4<u32>(codes & vec4<i32>(0xff)) << vec4<u32>(0u, 8u, 16u, 24u);
    let vector = gathered((bytes.x | bytes.y) | (bytes.z | bytes.w), ids);
    if quad % 4u == 0u && quad / 4u < params.words { x[quad / 4u] = vector; }
}
