// Writes the four codes of a quad in the int8 layout: codes in order, four to a word.
fn store(token: u32, quad: u32, codes: vec4<i32>) {
    x[token * params.words * 4u + quad] = pack4xI8(codes);
}
