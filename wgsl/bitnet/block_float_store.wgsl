// What products in floats take. units is [tokens, blocks]. y has, by `params.order`,
//     1    floats, a block's quads by place, [tokens, quads, blocks], for lanes that have a block each;
//     2    floats in order, [tokens, blocks, quads].
@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> units: array<f32>;

// Stores a quad where there is one.
fn store_block_float(r: BlockFloat, there: bool, ids: Ids) {
    if !there { return; }
    let block = r.token * params.blocks + r.block;
    let index = block * params.quads + r.quad;
    if r.quad == 0u { units[block] = r.unit; }
    y[select(index, (r.token * params.quads + r.quad) * params.blocks + r.block, params.order == 1u)] = bitcast<vec4<u32>>(r.whole * r.unit);
}
