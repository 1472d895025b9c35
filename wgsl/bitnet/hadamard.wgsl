// y = H·x / √block of every `block` neighbors, a power of two up to 1024, on top of y if `add` is not 0: H[i, j] = (-1)^(ones in i & j). x and y have
// `length` elements in whole blocks; with `in_place`, x is y. A workgroup makes TILE_X = 4·THREADS elements, THREADS apart in a thread. Step h gives of
// the elements i and i + h, where i has the bit h not, the sum and the difference: through workgroup memory below THREADS, in a thread above.
struct Params { length: u32, block: u32, scale: f32, add: u32, in_place: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<X>;

// Steps take turns in two halves, so that one barrier a step is enough.
var<workgroup> staged: array<vec4<f32>, 2u * THREADS>;

fn load(at: u32) -> f32 {
    if at >= params.length { return 0.0; }
    if params.in_place != 0u { return f32(y[at]); }
    return f32(x[at]);
}

fn store(at: u32, v: f32) {
    if at >= params.length { return; }
    if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn hadamard(group: Group, ids: Ids) {
    let first = flat_group(group) * TILE_X + ids.local;
    var v = vec4<f32>(load(first), load(first + THREADS), load(first + 2u * THREADS), load(first + 3u * THREADS));
    var half = 0u;
    for (var h = 1u; h < min(params.block, THREADS); h *= 2u) {
        staged[half + ids.local] = v;
        workgroupBarrier();
        let other = staged[half + (ids.local ^ h)];
        if (ids.local & h) != 0u { v = other - v; } else { v += other; }
        half = THREADS - half;
    }
    if params.block > THREADS { v = vec4<f32>(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w); }
    if params.block > 2u * THREADS { v = vec4<f32>(v.x + v.z, v.y + v.w, v.x - v.z, v.y - v.w); }
    v *= params.scale;
    store(first, v.x);
    store(first + THREADS, v.y);
    store(first + 2u * THREADS, v.z);
    store(first + 3u * THREADS, v.w);
}
