// The right side of a product with ternary weights W, decoded where they are loaded: with `transposed`, W is [n, k] and y = a·Wᵀ, which is BitLinear;
// else it is [k, n] and y = a·W, its gradient. codes has `words` a row, w_scale `groups` a row, of `group_words` words each. The left side is
// floats [m, k].
struct Params {
    m: u32, n: u32, k: u32, words: u32, groups: u32, group_words: u32, transposed: u32, add: u32, biased: u32, activation: u32,
}
var<immediate> params: Params;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

fn left_along_k() -> bool { return true; }
fn left_size() -> vec2<u32> { return vec2<u32>(params.m, params.k); }
fn left_start(batch: u32) -> u32 { return 0u; }
fn right_along_k() -> bool { return params.transposed != 0u; }

// Elements at .. at + 4 of a row of W, four codes that lie eight bits apart; 0 where there is none, as in the padding of a row.
fn right_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    let size = select(vec2<u32>(params.k, params.n), vec2<u32>(params.n, params.k), right_along_k());
    if line >= size.x || at >= size.y { return vec4<f32>(); }
    let word = at / 16u;
    let bit = code_bit(at % 16u);
    let fields = (vec4<u32>(codes[line * params.words + word]) >> (vec4<u32>(bit) + vec4<u32>(0u, 8u, 16u, 24u))) & vec4<u32>(3u);
    return (vec4<f32>(fields) - vec4<f32>(1.0)) * w_scale[line * params.groups + word / params.group_words];
}
