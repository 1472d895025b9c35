// What the GEMM keeps in workgroup memory in the int8 layout: the sixteen elements of a word, as four words of packed bytes. Exact for k < 2^17.
alias Acc = i32;
const PLANES: u32 = 1u;

fn decode(word: u32, plane: u32) -> vec4<u32> {
    return vec4<u32>(word, word >> 2u, word >> 4u, word >> 6u) & vec4<u32>(0x03030303u);
}

fn dot_tile(w: vec4<u32>, x: vec4<u32>, acc: i32) -> i32 {
    return acc + dot4I8Packed(w.x, x.x) + dot4I8Packed(w.y, x.y) + dot4I8Packed(w.z, x.z) + dot4I8Packed(w.w, x.w);
}

// Codes are value + 1, so the sum of the activations is subtracted.
fn finish(sum: i32, x_sum: vec2<i32>) -> f32 { return f32(sum - x_sum.x); }
