// The int8 layout: codes in order, four to a word.
fn store(token: u32, group: u32, codes: vec4<i32>) {
    x[token * params.words * 4u + group] = pack4xI8(codes);
}
