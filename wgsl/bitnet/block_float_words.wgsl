// Codes of blocks of any length, a word at a time. The words that a row's last block does not have meet zeros.
const STEP: u32 = 1u;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
fn load_codes(row: u32, word: u32) -> vec4<u32> { return vec4<u32>(codes[row * params.words + min(word, params.words - 1u)], 0u, 0u, 0u); }
