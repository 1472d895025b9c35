// The sides of matmul as floats a [m, k] and ternary weights W, decoded where they are staged: with `transposed`, W is [n, k] and y = a·Wᵀ, which is
// BitLinear; else it is [k, n] and y = a·W, its gradient. codes has `words` a row, w_scale `groups` a row, of `group_words` words each.
struct Params { m: u32, n: u32, k: u32, words: u32, groups: u32, group_words: u32, transposed: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

fn left(batch: u32, row: u32, l: u32) -> f32 { return f32(a[row * params.k + l]); }
fn left_by_row() -> bool { return true; }

fn right(batch: u32, l: u32, column: u32) -> f32 {
    let row = select(l, column, params.transposed != 0u);
    let feature = select(column, l, params.transposed != 0u);
    let word = feature / 16u;
    let value = f32(extractBits(codes[row * params.words + word], code_bit(feature % 16u), 2u)) - 1.0;
    return value * w_scale[row * params.groups + word / params.group_words];
}
fn right_by_row() -> bool { return params.transposed == 0u; }
