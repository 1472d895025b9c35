// What products in floats take. units is [tokens, blocks]. y has, by `params.order`,
//     1    floats, a block's quads by place, [tokens, quads, blocks], for lanes that have a block each;
//     2    pairs of f16 that add up to number / (256·unit), for tensor cores: of 32 columns the first ones, then the second ones; of a quad, number
//          0, 2, 1, 3, as codes come out of a word in pairs;
//     3    floats in order, [tokens, blocks, quads].
@group(0) @binding(0) var<storage, read_write> y: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> units: array<f32>;

// Stores a quad where there is one.
fn store_block_float(r: BlockFloat, there: bool, ids: Ids) {
    if !there { return; }
    let block = r.token * params.blocks + r.block;
    let index = block * params.quads + r.quad;
    if r.quad == 0u { units[block] = r.unit; }
    if params.order != 2u {
        let floats = bitcast<vec4<u32>>(r.whole * r.unit);
        let at = 2u * select(index, (r.token * params.quads + r.quad) * params.blocks + r.block, params.order == 1u);
        y[at] = floats.xy;
        y[at + 1u] = floats.zw;
        return;
    }
    // Eleven bits of the number, and the rest, by whole numbers: a driver may leave out a conversion to a half and back.
    let first = round(r.whole * 0.015625) * 64.0;
    let halves = first.xzyw * 0.00390625;
    let rest = (r.whole - first).xzyw * 0.00390625;
    let at = index / 8u * 16u + index % 8u;
    y[at] = vec2<u32>(pack2x16float(halves.xy), pack2x16float(halves.zw));
    y[at + 8u] = vec2<u32>(pack2x16float(rest.xy), pack2x16float(rest.zw));
}
