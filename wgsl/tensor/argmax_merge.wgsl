// The largest of the pairs that argmax gave for chunks.
@group(0) @binding(0) var<storage, read> parts: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn element(at: u32, index: u32, output: u32) -> vec2<u32> { return vec2<u32>(parts[2u * at], parts[2u * at + 1u]); }
