// A product is stored after a bias and an activation function: in place of bitnet/product_plain. Parts before bring `bias`, which is not read where
// `biased` is 0, and `activated`. A kernel may ask for the bias before it has the product, which then need not wait for it.
fn bias_of(row: u32) -> f32 {
    if params.biased == 0u { return 0.0; }
    return f32(bias[row]);
}

// Nothing is added where there is no bias: 0 would make +0 of -0.
fn finished(product: f32, of_row: f32) -> f32 { return activated(select(product, product + of_row, params.biased != 0u)); }
