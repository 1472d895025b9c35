// The gradient of a norm's weight: Σ dy·(x - mean)·inverse over rows, for every column. `statistics` [rows, 2] are each row's mean and inverse.
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> dy: array<X>;
@group(0) @binding(2) var<storage, read> statistics: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn element(at: u32, index: u32, output: u32) -> f32 {
    return f32(dy[at]) * ((f32(x[at]) - statistics[2u * index]) * statistics[2u * index + 1u]);
}

fn store(at: u32, sum: f32) {
    if params.add != 0u { y[at] += sum; } else { y[at] = sum; }
}
