// What a product's kernel makes goes to y after a bias and an activation function, on top of what is there if `add` is not 0: in place of
// tensor/matmul_store. Parts before bring `bias`, which is not read where `biased` is 0, and `activated`.
fn store(batch: u32, row: u32, column: u32, v: f32) {
    if row < params.m && column < params.n {
        let at = (batch * params.m + row) * params.n + column;
        var made = v;
        if params.biased != 0u { made += f32(bias[column]); }
        made = activated(made);
        if params.add != 0u { y[at] = Y(f32(y[at]) + made); } else { y[at] = Y(made); }
    }
}

// A loop, so that the functions are there once.
fn store_quad(batch: u32, row: u32, column: u32, v: vec4<f32>) {
    for (var i = 0u; i < 4u; i += 1u) { store(batch, row, column + i, v[i]); }
}
