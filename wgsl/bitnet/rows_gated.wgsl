// For norm_bitlinear.wgsl and norm_bitlinear_block_float.wgsl: the matrix is gates, then as many ups. They are taken in turn,
// so that a workgroup has both of an output, act(gate)·up.
fn matrix_row(i: u32) -> u32 { return (i & 1u) * (params.rows / 2u) + i / 2u; }

fn former(token: u32, i: u32) -> f32 { return 0.0; }

fn emit(token: u32, i: u32, writes: bool, product: f32, base: f32, ids: Ids) {
    sums[ids.local] = bitcast<u32>(product);
    workgroupBarrier();
    if writes && (i & 1u) == 0u { y[token * (params.rows / 2u) + i / 2u] = combine(product, bitcast<f32>(sums[ids.local + 1u])); }
}
