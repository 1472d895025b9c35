// The sides of matmul as floats a [m, k] and weights W of 1 to 8 bits, decoded where they are staged: with `transposed`, W is [n, k] and y = a·Wᵀ, which
// is BitLinear; else it is [k, n] and y = a·W, its gradient.
struct Params { m: u32, n: u32, k: u32, words: u32, groups: u32, group_size: u32, bits: u32, transposed: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read> w_zero: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<Y>;

fn left(batch: u32, row: u32, l: u32) -> f32 { return f32(a[row * params.k + l]); }
fn left_by_row() -> bool { return true; }

fn right(batch: u32, l: u32, column: u32) -> f32 {
    let transposed = params.transposed != 0u;
    return int_weight(select(l, column, transposed), select(column, l, transposed));
}
fn right_by_row() -> bool { return params.transposed == 0u; }
