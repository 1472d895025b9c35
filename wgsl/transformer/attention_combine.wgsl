// Brings together the shares of an attention that attention_few.wgsl has left: x [shares, tokens · heads, quads], x_weight [shares, tokens · heads] pairs
// (largest score, sum of weights), y [tokens · heads, head_dim]. A token's shares are those of the positions that it sees, SPAN each. One thread
// per quad.
struct Params { run: u32, heads: u32, head_dim: u32, longest: u32, tokens: u32, add: u32, window: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> x_weight: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_combine(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let quads = (params.head_dim + 3u) / 4u;
    let rows = params.tokens * params.heads;
    let row = index / quads;
    if row >= rows { return; }
    let quad = index % quads;
    let token = row / params.heads;
    let end = runs[token / params.run].y + token % params.run + 1u;
    let visible = min(end, params.longest);
    var so_far = Merged(-1e30, 0.0, vec4<f32>());
    for (var share = (end - min(end, params.window)) / SPAN; share * SPAN < visible; share += 1u) {
        let at = share * rows + row;
        so_far = merged(so_far, x_weight[at].x, x_weight[at].y, x[at * quads + quad]);
    }
    put(row * params.head_dim, quad, quotient(so_far));
}
