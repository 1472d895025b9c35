// The products of a word, sixteen weights of a row, with activations in floats: they are ±x or 0, so exact, and are added in order.

// 2^`bits`
fn power(bits: i32) -> f32 { return bitcast<f32>(u32(127 + bits) << 23u); }

// The last bits of 2^23 as a float count its ones, so a masked field of a word, put there, is 2^23 + code·2^bit, and a subtraction, which is exact,
// makes it value·2^bit: no conversion, and a shift for eight weights. Quad f of a word has its codes at the bits 2f and 2f + 8 of both halves.
fn weights(word: u32, f: u32) -> vec4<f32> {
    let mask = vec4<u32>(0x003u, 0x300u, 0x003u, 0x300u) << vec4<u32>(2u * f);
    let fields = vec4<u32>(word, word, word >> 16u, word >> 16u) & mask;
    let ones = vec4<f32>(1.0, 256.0, 1.0, 256.0) * power(2 * i32(f));
    return bitcast<vec4<f32>>(fields | vec4<u32>(0x4b000000u)) - (vec4<f32>(8388608.0) + ones);
}

// Activations for `weights`: multiplied by 2^-bit, once for all rows.
fn activations(token: u32, word: u32, f: u32) -> vec4<f32> {
    let ones = vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625) * power(-2 * i32(f));
    return left_quad(0u, token, 16u * word + 4u * f) * ones;
}

fn dot_in_order(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 { return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum)))); }

// The products of a quad with four rows.
fn rows_dot(w: Block, x: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot_in_order(w.x, x, sum.x), dot_in_order(w.y, x, sum.y), dot_in_order(w.z, x, sum.z), dot_in_order(w.w, x, sum.w));
}
