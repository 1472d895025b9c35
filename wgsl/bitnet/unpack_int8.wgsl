// Reads the four codes of a quad in the int8 layout: codes in order, four to a word.
fn load(token: u32, quad: u32) -> vec4<i32> {
    return unpack4xI8(x[token * params.words * 4u + quad]);
}
