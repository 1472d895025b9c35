// y[t, c] = table[tokens[t], c] · table_scale[tokens[t]]: rows of an embedding as floats, y [tokens, columns], on top of y if `add`
// is not 0. One thread per 16 bytes of a row, which dense_*.wgsl unpacks; a row has `blocks` of them. Where `advance` is not 0, each token is the next of
// a sequence, and is counted in runs [tokens], pairs of a sequence and the tokens that it has had.
struct Params { tokens: u32, columns: u32, blocks: u32, rows: u32, add: u32, advance: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> table_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> runs: array<vec2<u32>>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn embed(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let token = index / params.blocks;
    if token >= params.tokens { return; }
    let block = index % params.blocks;
    if params.advance != 0u && block == 0u { runs[token].y += 1u; }
    // A token id beyond the table means that the logits were not finite, which the host reports.
    let row = min(tokens[token], params.rows - 1u);
    let v = table[row * params.blocks + block];
    for (var q = 0u; q < QUADS; q += 1u) {
        let elements = quad(v, q) * table_scale[row];
        for (var j = 0u; j < 4u; j += 1u) {
            let i = (block * QUADS + q) * 4u + j;
            if i < params.columns {
                let at = token * params.columns + i;
                if params.add != 0u { y[at] += elements[j]; } else { y[at] = elements[j]; }
            }
        }
    }
}
