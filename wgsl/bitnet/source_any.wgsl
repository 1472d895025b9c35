// What is quantized, number by number: for shared/row_numbers.
alias Source = X;
fn number(token: u32, i: u32) -> f32 { return f32(source[token * params.features + i]); }
