// For attention_few.wgsl: the workgroup that is the last of its rows to end brings their shares together. x is [shares, tokens · heads, quads + 1]: sums of
// weighted values, then the largest score and the sum of weights; x_count counts for every tile of rows which shares are done, and is 0 before and after.
//
// Nobody waits for another workgroup. What is written before a barrier for storage is seen after the barrier of a workgroup that has seen the count, since x
// is coherent, and naga's storageBarrier is AcquireRelease for the device under Vulkan. Metal's orders one threadgroup only: there, attention_left.wgsl and
// attention_combine.wgsl do this. (Words that are atomic would do for coherent ones, but a GPU loads them one lane after another.)
@group(0) @binding(6) @coherent var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> x_count: array<atomic<u32>>;

var<workgroup> done: u32;

fn shares_of(rows: Rows) -> u32 { return (rows.visible + SPAN - 1u) / SPAN; }

fn is_single(rows: Rows, group: Group) -> bool { return shares_of(rows) == 1u; }

fn leave(rows: Rows, share: u32, output: u32, known: bool, found: Share, group: Group, ids: Ids) {
    let shares = shares_of(rows);
    let tile = (group.id.z * params.kv_heads + rows.kv_head) * group.count.x + group.id.x;
    // Quads of a row, and of all rows.
    let length = rows.quads + 1u;
    let stride = params.heads * params.run * group.count.z * length;
    let start = output * length;
    for (var q = 0u; q < QUADS; q += 1u) {
        let quad = ids.local / 8u + q * (THREADS / 8u);
        if known && quad < rows.quads { x[share * stride + start + quad] = found.sum[q]; }
    }
    if known && ids.local < 8u { x[share * stride + start + rows.quads] = vec4<f32>(found.largest, found.total, 0.0, 0.0); }
    storageBarrier();
    if ids.local == 0u { done = atomicAdd(&x_count[tile], 1u) + 1u; }
    if workgroupUniformLoad(&done) != shares { return; }
    storageBarrier();
    if ids.local == 0u { atomicStore(&x_count[tile], 0u); }
    if !known { return; }
    for (var q = 0u; q < QUADS; q += 1u) {
        let quad = ids.local / 8u + q * (THREADS / 8u);
        if quad >= rows.quads { return; }
        var so_far = Merged(LOWEST, 0.0, vec4<f32>());
        // The numbers of so many shares are loaded, the last ones again where there are fewer, before the first is added.
        for (var first = 0u; first < shares; first += AHEAD) {
            var weight = array<vec4<f32>, AHEAD>();
            var sum = array<vec4<f32>, AHEAD>();
            for (var i = 0u; i < AHEAD; i += 1u) {
                let at = min(first + i, shares - 1u) * stride + start;
                weight[i] = x[at + rows.quads];
                sum[i] = x[at + quad];
            }
            for (var i = 0u; i < AHEAD; i += 1u) {
                if first + i < shares { so_far = merged(so_far, weight[i].x, weight[i].y, sum[i]); }
            }
        }
        put(output * params.head_dim, quad, quotient(so_far));
    }
}
