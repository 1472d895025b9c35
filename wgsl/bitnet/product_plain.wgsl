// A product is stored as it is.
fn bias_of(row: u32) -> f32 { return 0.0; }

fn finished(product: f32, of_row: f32) -> f32 { return product; }
