// What products of integers take: y is [tokens, 2, blocks, quads] of four bytes (byte_planes.wgsl). units is [tokens, blocks] of the
// unit, and of how many of it the block adds up to.
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read_write> units: array<vec2<f32>>;

var<workgroup> sums: array<f32, THREADS>;

// Stores a quad where there is one. All threads of a workgroup must call this together.
fn store_block_float(r: BlockFloat, there: bool, ids: Ids) {
    // A float holds it.
    sums[ids.local] = (r.whole.x + r.whole.y) + (r.whole.z + r.whole.w);
    workgroupBarrier();
    if there {
        if r.quad == 0u {
            var sum = 0.0;
            for (var i = 0u; i < params.quads; i += 1u) { sum += sums[ids.local + i]; }
            units[r.token * params.blocks + r.block] = vec2<f32>(r.unit, sum);
        }
        let planes = byte_planes(whole_numbers(r.whole));
        let plane = params.blocks * params.quads;
        let at = 2u * r.token * plane + r.block * params.quads + r.quad;
        y[at] = planes.x;
        y[at + plane] = planes.y;
    }
    workgroupBarrier();
}
