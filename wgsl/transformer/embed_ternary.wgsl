// y[t, c] = Wq[tokens[t], c]·table_scale[tokens[t], group of c]: rows of a ternary embedding as floats, y [tokens, columns], on top of y if `add` is not
// 0. One thread per word of a row, which has `row_words` of them with its padding, and `groups` scales, of `group_words` words each. runs: embed.wgsl.
struct Params { tokens: u32, columns: u32, row_words: u32, groups: u32, group_words: u32, rows: u32, add: u32, advance: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read> table_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> runs: array<vec2<u32>>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn embed_ternary(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let token = index / params.row_words;
    let word = index % params.row_words;
    let first = 16u * word;
    if token >= params.tokens || first >= params.columns { return; }
    if params.advance != 0u && word == 0u { runs[token].y += 1u; }
    // A token id beyond the table means that the logits were not finite, which the host reports.
    let row = min(tokens[token], params.rows - 1u);
    let codes = table[row * params.row_words + word];
    let scale = table_scale[row * params.groups + word / params.group_words];
    for (var e = 0u; e < min(16u, params.columns - first); e += 1u) {
        let v = (f32((codes >> code_bit(e)) & 3u) - 1.0) * scale;
        let at = token * params.columns + first + e;
        if params.add != 0u { y[at] += v; } else { y[at] = v; }
    }
}
