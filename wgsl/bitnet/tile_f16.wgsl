// What the GEMM keeps in workgroup memory in the f16 layout: the eight elements that a word has in a plane, as four pairs of f16. Fields become
// normal f16 (1024 + code·4^f - 1024), so that flushed subnormals do no harm. Exact for k <= 65536.
alias Acc = f32;
const PLANES: u32 = 2u;

fn widen(field: u32) -> u32 { return pack2x16float(unpack2x16float(field | 0x64006400u) - vec2<f32>(1024.0)); }

fn decode(word: u32, plane: u32) -> vec4<u32> {
    let fields = vec4<u32>(word >> (8u * plane)) & vec4<u32>(0x00030003u, 0x000c000cu, 0x00300030u, 0x00c000c0u);
    return vec4<u32>(widen(fields.x), widen(fields.y), widen(fields.z), widen(fields.w));
}

fn dot_pair(w: u32, x: u32, acc: f32) -> f32 {
    let a = unpack2x16float(w);
    let b = unpack2x16float(x);
    return fma(a.y, b.y, fma(a.x, b.x, acc));
}

fn dot_tile(w: vec4<u32>, x: vec4<u32>, acc: f32) -> f32 {
    return dot_pair(w.w, x.w, dot_pair(w.z, x.z, dot_pair(w.y, x.y, dot_pair(w.x, x.x, acc))));
}

// Codes are value + 1, so the sum of the activations is subtracted.
fn finish(sum: f32, x_sum: vec2<i32>) -> f32 { return sum - f32(x_sum.x); }
