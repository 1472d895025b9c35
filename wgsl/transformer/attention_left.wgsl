// For attention_few.wgsl: where the grid has several shares, they leave what attention_combine.wgsl makes y of: in x [shares, tokens · heads, quads]
// sums of weighted values, in x_weight [shares, tokens · heads] each row's largest score and its sum of weights.
@group(0) @binding(6) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> x_weight: array<vec2<f32>>;

fn is_single(rows: Rows, group: Group) -> bool { return group.count.y == params.kv_heads; }

fn leave(rows: Rows, share: u32, output: u32, known: bool, found: Share, group: Group, ids: Ids) {
    let at = share * params.heads * params.run * group.count.z + output;
    for (var q = 0u; q < QUADS; q += 1u) {
        let quad = ids.local / 8u + q * (THREADS / 8u);
        if known && quad < rows.quads { x[at * rows.quads + quad] = found.sum[q]; }
    }
    if known && ids.local < 8u { x_weight[at] = vec2<f32>(found.largest, found.total); }
}
