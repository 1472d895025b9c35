// Activations in block floating point: the numbers of a block, of 4·quads columns, are rounded to multiples of a unit of theirs, of which the largest has
// 2^15 to 2^16. So the sum of a block's numbers, each times -1, 0 or 1, is a multiple of that unit, below 2^24 of them: exact in f32, in any order.
// x is [tokens, features]; a block that its row does not fill ends with zeros. One thread per quad; a kernel says what becomes of it.
struct Params { tokens: u32, features: u32, blocks: u32, quads: u32, order: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;

var<workgroup> magnitudes: array<u32, THREADS>;

// A thread's quad, and where it is.
struct Rounded { token: u32, block: u32, quad: u32, unit: f32, whole: vec4<f32> }

fn number(token: u32, column: u32) -> f32 {
    if token >= params.tokens || column >= params.features { return 0.0; }
    return f32(x[token * params.features + column]);
}

fn rounded_quad(index: u32, ids: Ids) -> Rounded {
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
    // Numbers so small that their unit has no inverse, or that a device takes for 0, are 0.
    let exponent = max(largest >> 23u, 32u);
    let unit = bitcast<f32>((exponent - 15u) << 23u);
    let inverse = bitcast<f32>((269u - exponent) << 23u);
    return Rounded(token, block, quad, unit, round(v * inverse));
}
