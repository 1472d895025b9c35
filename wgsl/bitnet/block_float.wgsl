// Activations in block floating point: the numbers of a block, of 4·quads columns, are rounded to multiples of a unit of theirs, of which the largest has up
// to 127·2^8. So the sum of a block's numbers, each times -1, 0 or 1, is a multiple of that unit, below 2^22 of them: exact in f32, in any order.
// A kernel that includes this defines `params.blocks`, blocks of a row, and `params.quads`.
var<workgroup> magnitudes: array<u32, THREADS>;

// A quad of multiples, and where it is: of a token, a block, and in the block.
struct BlockFloat { token: u32, block: u32, quad: u32, unit: f32, whole: vec4<f32> }

// Rounds quad number `quad` of a token's row. All threads of a workgroup must call this together, and the quads of a block must be side by side; beyond the
// row, numbers are 0.
fn block_float_quad(v: vec4<f32>, token: u32, quad: u32, ids: Ids) -> BlockFloat {
    let in_block = quad % params.quads;
    // The bits of floats >= 0 are ordered as the floats are.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    magnitudes[ids.local] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    var largest = 0u;
    for (var i = 0u; i < params.quads; i += 1u) { largest = max(largest, magnitudes[ids.local - in_block + i]); }
    workgroupBarrier();
    return BlockFloat(token, quad / params.quads, in_block, unit_for(largest), round(v * inverse_unit(largest)));
}
