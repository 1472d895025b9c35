// The products of a word, sixteen weights of a row, with activations in floats: they are ±x or 0, so exact, and are added in order.

// Field f of the codes of a word at even or at odd places, as value = code - 1. The last bits of 1024 as a half count its ones, so with one field left in
// place, a half is 1024 + code·4^f, and what follows is exact: no conversion, and a shift for eight weights.
fn values(codes: u32, f: u32) -> vec2<f32> {
    let one = bitcast<f32>((127u - 2u * f) << 23u);
    let v = unpack2x16float((codes | 0x64006400u) & (0x64006400u | (0x00030003u << (2u * f))));
    return fma(v, vec2<f32>(one), vec2<f32>(-1024.0 * one - 1.0));
}

fn weights(word: u32, f: u32) -> vec4<f32> {
    let even = values(word, f);
    let odd = values(word >> 8u, f);
    return vec4<f32>(even.x, odd.x, even.y, odd.y);
}

fn dot_in_order(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 { return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum)))); }

// The products of a quad with four rows.
fn rows_dot(w: Block, x: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot_in_order(w.x, x, sum.x), dot_in_order(w.y, x, sum.y), dot_in_order(w.z, x, sum.z), dot_in_order(w.w, x, sum.w));
}
