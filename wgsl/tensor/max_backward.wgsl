// dy where the index is the winner's, else 0
@group(0) @binding(0) var<storage, read> winner: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read_write> dx: array<X>;

fn gradient(at: u32, index: u32, output: u32) -> f32 { return select(0.0, dy[output], winner[output] == index); }
