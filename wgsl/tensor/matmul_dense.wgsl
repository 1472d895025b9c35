// The sides of matmul as matrices with strides, so that either may be transposed, or the same for the whole batch.
struct Params {
    m: u32, n: u32, k: u32, a_row: u32, a_column: u32, a_batch: u32, b_row: u32, b_column: u32, b_batch: u32, add: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> b: array<X>;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

fn left(batch: u32, row: u32, l: u32) -> f32 { return f32(a[batch * params.a_batch + row * params.a_row + l * params.a_column]); }
fn left_by_row() -> bool { return params.a_column == 1u; }
fn right(batch: u32, l: u32, column: u32) -> f32 { return f32(b[batch * params.b_batch + l * params.b_row + column * params.b_column]); }
fn right_by_row() -> bool { return params.b_column == 1u; }
