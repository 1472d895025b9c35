// For norm_bitlinear.wgsl and norm_bitlinear_block_float.wgsl: a row of the matrix makes an output, which is added to y if `add` is not 0.
fn matrix_row(i: u32) -> u32 { return i; }

// Loaded also where it is not needed, since a compiler may wait for a load within a branch.
fn former(token: u32, i: u32) -> f32 { return y[token * params.rows + min(i, params.rows - 1u)]; }

fn emit(token: u32, i: u32, writes: bool, product: f32, base: f32, ids: Ids) {
    // Not `base + product`, which would make +0 of -0.
    if writes { y[token * params.rows + i] = select(product, base + product, params.add != 0u); }
}
