// Codes of blocks that are whole quads of words, as their rows are: four words at a time.
const STEP: u32 = 4u;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
fn load_codes(row: u32, word: u32) -> vec4<u32> { return codes[(row * params.words + word) / 4u]; }
