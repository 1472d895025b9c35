// Rows of numbers, which a part before defines, in block floating point: quantize_block.wgsl. One thread per quad.
struct Params { tokens: u32, features: u32, blocks: u32, quads: u32, order: u32 }
var<immediate> params: Params;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_block_float(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let row_quads = params.blocks * params.quads;
    let token = index / row_quads;
    let quad = index % row_quads;
    var v = vec4<f32>();
    // Where a row ends in a quad, the rest of it is 0.
    for (var i = 0u; i < 4u; i += 1u) {
        if token < params.tokens && 4u * quad + i < params.features { v[i] = number(token, 4u * quad + i); }
    }
    store_block_float(block_float_quad(v, token, quad, ids), token < params.tokens, ids);
}
