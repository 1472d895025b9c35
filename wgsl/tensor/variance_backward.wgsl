// dy·(x - mean)·factor
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> mean: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<X>;

fn gradient(at: u32, index: u32, output: u32) -> f32 { return (f32(x[at]) - mean[output]) * params.factor * dy[output]; }
