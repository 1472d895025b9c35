// dy·x / norm, 0 where the norm is 0
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> norm: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<X>;

fn gradient(at: u32, index: u32, output: u32) -> f32 {
    let length = norm[output];
    return select(f32(x[at]) / length * dy[output], 0.0, length == 0.0);
}
