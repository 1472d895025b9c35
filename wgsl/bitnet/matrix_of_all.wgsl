// For bitlinear_block_float_gemv.wgsl: one matrix for all rows of x.
struct Params { m: u32, n: u32, blocks: u32, words: u32, block_words: u32, groups: u32, group_blocks: u32, lanes: u32, add: u32 }
var<immediate> params: Params;

fn input_row(token: u32) -> u32 { return token; }

fn first_row(token: u32) -> u32 { return 0u; }

fn block_scale(scale: vec4<f32>) -> vec4<f32> { return scale; }

fn stored(total: f32, token: u32, row: u32) -> f32 { return total; }
