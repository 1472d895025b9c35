// For attention_few.wgsl: the workgroup that is the last of its rows to end brings their shares together. x is [shares, tokens · heads, 4·quads + 2]: bits
// of sums of weighted values, the largest score, the sum of weights; x_count counts for every tile of rows which shares are done, and is 0 before
// and after.
//
// Nobody waits for another workgroup. What is written before a barrier for storage is seen after the barrier of a workgroup that has seen the count, since
// words of x are atomic, and naga's storageBarrier is AcquireRelease for the device under Vulkan. Metal's orders one threadgroup only: there,
// attention_left.wgsl and attention_combine.wgsl do this.
@group(0) @binding(6) var<storage, read_write> x: array<atomic<u32>>;
@group(0) @binding(7) var<storage, read_write> x_count: array<atomic<u32>>;

var<workgroup> done: u32;

fn shares_of(rows: Rows) -> u32 { return (rows.visible + SPAN - 1u) / SPAN - rows.start / SPAN; }

fn is_single(rows: Rows, group: Group) -> bool { return shares_of(rows) == 1u; }

fn load(at: u32) -> f32 { return bitcast<f32>(atomicLoad(&x[at])); }

fn leave(rows: Rows, share: u32, output: u32, known: bool, found: Share, group: Group, ids: Ids) {
    let shares = shares_of(rows);
    let tile = (group.id.z * params.kv_heads + rows.kv_head) * group.count.x + group.id.x;
    // Words of a row, and of all rows.
    let length = 4u * rows.quads + 2u;
    let stride = params.heads * params.run * group.count.z * length;
    let start = output * length;
    for (var q = 0u; q < QUADS; q += 1u) {
        let quad = ids.local / 8u + q * (THREADS / 8u);
        if known && quad < rows.quads {
            let at = share * stride + start + 4u * quad;
            for (var j = 0u; j < 4u; j += 1u) { atomicStore(&x[at + j], bitcast<u32>(found.sum[q][j])); }
        }
    }
    if known && ids.local < 8u {
        let at = share * stride + start + 4u * rows.quads;
        atomicStore(&x[at], bitcast<u32>(found.largest));
        atomicStore(&x[at + 1u], bitcast<u32>(found.total));
    }
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
        // The numbers of this many shares are loaded, the last ones again where there are fewer, before the first is added.
        for (var first = 0u; first < shares; first += AHEAD) {
            var largest = array<f32, AHEAD>();
            var total = array<f32, AHEAD>();
            var sum = array<vec4<f32>, AHEAD>();
            for (var i = 0u; i < AHEAD; i += 1u) {
                let at = (rows.start / SPAN + min(first + i, shares - 1u)) * stride + start;
                largest[i] = load(at + 4u * rows.quads);
                total[i] = load(at + 4u * rows.quads + 1u);
                sum[i] = vec4<f32>(load(at + 4u * quad), load(at + 4u * quad + 1u), load(at + 4u * quad + 2u), load(at + 4u * quad + 3u));
            }
            for (var i = 0u; i < AHEAD; i += 1u) {
                if first + i < shares { so_far = merged(so_far, largest[i], total[i], sum[i]); }
            }
        }
        put(output * params.head_dim, quad, quotient(so_far));
    }
}
