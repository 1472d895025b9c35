// For quantize_block_float.wgsl: codes of eight bits, four a word, in rows of a multiple of 64.
@group(0) @binding(2) var<storage, read> x: array<u32>;
fn number(token: u32, column: u32) -> f32 {
    let row_words = (params.features + 63u) / 64u * 16u;
    return f32(unpack4xI8(x[token * row_words + column / 4u])[column % 4u]);
}
