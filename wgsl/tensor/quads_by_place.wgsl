// y[t, q, b] = x[t, b, q] of quads: x is [tokens, blocks, quads]; y is what kernels of several tokens take, whose lanes have a block each. One thread per quad.
struct Params { tokens: u32, blocks: u32, quads: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quads_by_place(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let token = index / (params.blocks * params.quads);
    if token >= params.tokens { return; }
    let q = index / params.blocks % params.quads;
    y[index] = x[(token * params.blocks + index % params.blocks) * params.quads + q];
}
