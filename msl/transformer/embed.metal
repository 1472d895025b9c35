// y[t, c] = table[tokens[t], c] · table_scale[tokens[t]]: rows of an embedding as floats, y [tokens, columns], on top of y if `add`
// is not 0. One thread per 16 bytes of a row, which dense_*.metal unpacks; a row has `blocks` of them. runs: wgsl/transformer/embed.wgsl.
struct Params { uint tokens, columns, blocks, rows, add, advance; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void embed(
    constant Params& params          [[buffer(0)]],
    device const uint* tokens        [[buffer(1)]],
    device const uint4* table        [[buffer(2)]],
    device const float* table_scale  [[buffer(3)]],
    device float* y                  [[buffer(4)]],
    device uint2* runs               [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint token = index / params.blocks;
    if (token >= params.tokens) return;
    const uint block = index % params.blocks;
    if (params.advance != 0u && block == 0u) runs[token].y += 1u;
    // A token id beyond the table means that the logits were not finite, which the host reports.
    const uint row = min(tokens[token], params.rows - 1u);
    const uint4 v = table[row * params.blocks + block];
    for (uint q = 0; q < QUADS; ++q) {
        const float4 elements = unpack4(v, q) * table_scale[row];
        for (uint j = 0; j < 4; ++j) {
            const uint i = (block * QUADS + q) * 4u + j;
            const uint at = token * params.columns + i;
            if (i < params.columns) y[at] = params.add != 0 ? y[at] + elements[j] : elements[j];
        }
    }
}
