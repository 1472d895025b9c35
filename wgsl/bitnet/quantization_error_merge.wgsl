// The sums that quantization_error gave for chunks.
@group(0) @binding(0) var<storage, read> parts: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn part(at: u32, i: u32) -> f32 { return bitcast<f32>(parts[6u * at + i]); }
fn element(at: u32, index: u32, output: u32) -> Acc {
    return Acc(part(at, 0u), parts[6u * at + 1u], part(at, 2u), part(at, 3u), part(at, 4u), parts[6u * at + 5u]);
}
