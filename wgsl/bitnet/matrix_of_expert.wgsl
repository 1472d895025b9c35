// For bitlinear_block_float_gemv.wgsl: output row i is of matrix chosen[i] and of row i / per_token of x. Without such a matrix it is NaN.
struct Params {
    m: u32, n: u32, blocks: u32, words: u32, block_words: u32, groups: u32, group_blocks: u32, lanes: u32, add: u32, experts: u32, per_token: u32,
    scaled_last: u32,
}
var<immediate> params: Params;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;

fn input_row(token: u32) -> u32 { return token / params.per_token; }

fn first_row(token: u32) -> u32 { return select(0u, chosen[token], chosen[token] < params.experts) * params.n; }

fn nan_unless(there: bool, value: f32) -> f32 {
    var bits = bitcast<u32>(value);
    if !there { bits = 0x7fc00000u; }
    return bitcast<f32>(bits);
}
