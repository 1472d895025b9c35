// Reads all `quads` vectors of `source`, four loads in flight per thread. Each thread writes the xor of all that it has read to `sink`, so that no
// load can be optimized away.
struct Params { quads: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<vec4<u32>>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn read_bandwidth(group: Group, ids: Ids) {
    let index = group.id.x * THREADS + ids.local;
    let stride = group.count.x * THREADS;
    var a = vec4<u32>();
    var b = vec4<u32>();
    var c = vec4<u32>();
    var d = vec4<u32>();
    var i = index;
    for (; i + 3u * stride < params.quads; i += 4u * stride) {
        a ^= source[i];
        b ^= source[i + stride];
        c ^= source[i + 2u * stride];
        d ^= source[i + 3u * stride];
    }
    for (; i < params.quads; i += stride) { a ^= source[i]; }
    sink[index] = a ^ b ^ c ^ d;
}
