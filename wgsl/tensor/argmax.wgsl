// The index of the largest x ^ flip.
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn element(at: u32, index: u32, output: u32) -> vec2<u32> {
    return vec2<u32>(to_key(bitcast<f32>(bitcast<u32>(f32(x[at])) ^ params.flip)), ~index);
}
