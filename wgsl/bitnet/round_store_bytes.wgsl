// What packed products of integers take: y is [tokens, 3, blocks, quads] of four bytes, number / unit = 2^14·first + 2^7·second + third. units is [tokens,
// blocks] of the unit, and of how many of it the block adds up to.
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read_write> units: array<vec2<f32>>;

var<workgroup> sums: array<f32, THREADS>;

fn bytes(v: vec4<i32>) -> u32 {
    let low = bitcast<vec4<u32>>(v) & vec4<u32>(0xffu);
    return low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}

// The last seven bits, with a sign.
fn last_bits(v: vec4<i32>) -> vec4<i32> { return (v << vec4<u32>(25u)) >> vec4<u32>(25u); }

// Stores a quad where there is one. All threads of a workgroup must call this together.
fn store_rounded(r: Rounded, there: bool, ids: Ids) {
    // A float holds it.
    sums[ids.local] = (r.whole.x + r.whole.y) + (r.whole.z + r.whole.w);
    workgroupBarrier();
    if there {
        if r.quad == 0u {
            var sum = 0.0;
            for (var i = 0u; i < params.quads; i += 1u) { sum += sums[ids.local + i]; }
            units[r.token * params.blocks + r.block] = vec2<f32>(r.unit, sum);
        }
        let whole = vec4<i32>(r.whole);
        let third = last_bits(whole);
        let others = (whole - third) >> vec4<u32>(7u);
        let second = last_bits(others);
        let plane = params.blocks * params.quads;
        let at = 3u * r.token * plane + r.block * params.quads + r.quad;
        y[at] = bytes((others - second) >> vec4<u32>(7u));
        y[at + plane] = bytes(second);
        y[at + 2u * plane] = bytes(third);
    }
    workgroupBarrier();
}
