// What a product's kernel makes goes to y, on top of what is there if `add` is not 0.
fn store(batch: u32, row: u32, column: u32, v: f32) {
    if row < params.m && column < params.n {
        let at = (batch * params.m + row) * params.n + column;
        if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
    }
}

fn store_quad(batch: u32, row: u32, column: u32, v: vec4<f32>) {
    store(batch, row, column, v.x);
    store(batch, row, column + 1u, v.y);
    store(batch, row, column + 2u, v.z);
    store(batch, row, column + 3u, v.w);
}
