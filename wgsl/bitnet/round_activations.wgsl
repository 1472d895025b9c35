// Activations in block floating point: the numbers of a block, of 4·quads columns, are rounded to multiples of a unit of theirs, of which the largest has
// 2^15 to 2^16. So the sum of a block's numbers, each times -1, 0 or 1, is a multiple of that unit, below 2^24 of them: exact in f32, in any order.
// x is [tokens, features]; a block that its row does not fill ends with zeros. units is [tokens, blocks]. y has, by `order`,
//     0    floats in order, [tokens, blocks, quads];
//     1    the same with a block's quads by place, [tokens, quads, blocks], for lanes that have a block each;
//     2    pairs of halves that add up to number / (256·unit), for matrix units: of 32 columns the first halves, then the second ones; of a quad, number
//          0, 2, 1, 3, as codes come out of a word in pairs.
// One thread per quad.
struct Params { tokens: u32, features: u32, blocks: u32, quads: u32, order: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> units: array<f32>;

var<workgroup> magnitudes: array<u32, THREADS>;

fn number(token: u32, column: u32) -> f32 {
    if token >= params.tokens || column >= params.features { return 0.0; }
    return f32(x[token * params.features + column]);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn round_activations(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let quad = index % params.quads;
    let block = index / params.quads % params.blocks;
    let token = index / params.quads / params.blocks;
    let column = 4u * (block * params.quads + quad);
    let v = vec4<f32>(number(token, column), number(token, column + 1u), number(token, column + 2u), number(token, column + 3u));
    // The bits of floats >= 0 are ordered as the floats are.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    magnitudes[ids.local] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    // A workgroup has whole blocks.
    var largest = 0u;
    for (var i = 0u; i < params.quads; i += 1u) { largest = max(largest, magnitudes[ids.local - quad + i]); }
    if token >= params.tokens { return; }
    // Numbers so small that their unit has no inverse, or that a device takes for 0, are 0.
    let exponent = max(largest >> 23u, 32u);
    let unit = bitcast<f32>((exponent - 15u) << 23u);
    let inverse = bitcast<f32>((269u - exponent) << 23u);
    let whole = round(v * inverse);
    if quad == 0u { units[token * params.blocks + block] = unit; }
    if params.order < 2u {
        let rounded = bitcast<vec4<u32>>(whole * unit);
        let at = 2u * select(index, (token * params.quads + quad) * params.blocks + block, params.order == 1u);
        y[at] = rounded.xy;
        y[at + 1u] = rounded.zw;
        return;
    }
    // However a driver rounds the first half, the second one has the rest.
    let small = whole * 0.00390625;
    let first = vec2<u32>(pack2x16float(small.xz), pack2x16float(small.yw));
    let rest = small.xzyw - vec4<f32>(unpack2x16float(first.x), unpack2x16float(first.y));
    let at = index / 8u * 16u + index % 8u;
    y[at] = first;
    y[at + 8u] = vec2<u32>(pack2x16float(rest.xy), pack2x16float(rest.zw));
}
