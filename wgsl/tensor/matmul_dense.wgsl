// The sides of matmul: matrices or batches of them, either of which may be transposed. A line of a side is a row as it lies in memory. `a_batch` and
// `b_batch` are the lines from one matrix of a side to the next, 0 where it has one for the whole batch.
struct Params {
    m: u32, n: u32, k: u32, a_transposed: u32, b_transposed: u32, a_batch: u32, b_batch: u32, add: u32, biased: u32, activation: u32,
}
var<immediate> params: Params;
@group(0) @binding(2) var<storage, read_write> y: array<Y>;

fn left_along_k() -> bool { return params.a_transposed == 0u; }
fn right_along_k() -> bool { return params.b_transposed != 0u; }

// The lines of a matrix, and the elements of a line.
fn left_size() -> vec2<u32> { return select(vec2<u32>(params.k, params.m), vec2<u32>(params.m, params.k), left_along_k()); }
fn right_size() -> vec2<u32> { return select(vec2<u32>(params.k, params.n), vec2<u32>(params.n, params.k), right_along_k()); }

fn left_start(batch: u32) -> u32 { return batch * params.a_batch; }
fn right_start(batch: u32) -> u32 { return batch * params.b_batch; }
