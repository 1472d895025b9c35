// Σ (x - mean)² / divisor
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> mean: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn element(at: u32, index: u32, output: u32) -> f32 {
    let v = f32(x[at]) - mean[output];
    return v * v;
}

fn store(at: u32, acc: f32) {
    if params.last == 0u { y[at] = acc; return; }
    let v = exact_quotient(acc, params.divisor);
    if params.add != 0u { y[at] += v; } else { y[at] = v; }
}
