// Reads all of `source`, four loads in flight a thread, and keeps one word a component, so that nothing can be left out.
struct Params { quads: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<vec4<u32>>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn read_bandwidth(group: Group, ids: Ids) {
    let place = group.id.x * THREADS + ids.local;
    let stride = group.count.x * THREADS;
    var a = vec4<u32>();
    var b = vec4<u32>();
    var c = vec4<u32>();
    var d = vec4<u32>();
    var i = place;
    for (; i + 3u * stride < params.quads; i += 4u * stride) {
        a ^= source[i];
        b ^= source[i + stride];
        c ^= source[i + 2u * stride];
        d ^= source[i + 3u * stride];
    }
    for (; i < params.quads; i += stride) { a ^= source[i]; }
    sink[place] = a ^ b ^ c ^ d;
}
