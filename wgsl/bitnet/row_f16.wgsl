// For norm_bitlinear.wgsl: a row in workgroup memory in the f16 layout (f16_planes.wgsl).
fn store(quad: u32, codes: vec4<i32>, ids: Ids) {
    // 4^-f, made of bits, since exp2 may be a unit off.
    let scaled = vec4<f32>(codes) * bitcast<f32>((127u - 2u * (quad & 3u)) << 23u);
    let even = gathered(pack2x16float(scaled.xz), ids);
    let odd = gathered(pack2x16float(scaled.yw), ids);
    if quad % 4u == 0u && quad / 4u < params.words {
        x[quad / 4u] = even;
        x[PLANE + quad / 4u] = odd;
    }
}
