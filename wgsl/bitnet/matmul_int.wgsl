// The right side of a product with weights W of 1 to 8 bits, decoded where they are loaded: with `transposed`, W is [n, k] and y = a·Wᵀ, which is
// BitLinear; else it is [k, n] and y = a·W, its gradient. The left side is floats [m, k].
struct Params {
    m: u32, n: u32, k: u32, words: u32, groups: u32, group_size: u32, bits: u32, transposed: u32, add: u32, biased: u32, activation: u32,
}
var<immediate> params: Params;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read> w_zero: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<Y>;

fn left_along_k() -> bool { return true; }
fn left_size() -> vec2<u32> { return vec2<u32>(params.m, params.k); }
fn left_start(batch: u32) -> u32 { return 0u; }
fn right_along_k() -> bool { return params.transposed != 0u; }

// Elements at .. at + 4 of a row of W, which a word has together; 0 beyond the row. What a row is padded with meets no input.
fn right_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    let size = select(vec2<u32>(params.k, params.n), vec2<u32>(params.n, params.k), right_along_k());
    if line >= size.x || at >= size.y { return vec4<f32>(); }
    let bit = at * params.bits;
    let word = codes[line * params.words + bit / 32u];
    let fields = (vec4<u32>(word) >> (vec4<u32>(bit % 32u) + vec4<u32>(0u, 1u, 2u, 3u) * params.bits)) & vec4<u32>((1u << params.bits) - 1u);
    let affine = line * params.groups + at / params.group_size;
    return w_scale[affine] * (vec4<f32>(fields) - vec4<f32>(w_zero[affine]));
}
