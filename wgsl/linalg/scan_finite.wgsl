// status = NOT_FINITE for a matrix of `count` numbers x that are not all finite, unless something is wrong with it already. Where this is the `first`
// to write the status, it is 0 for others. One workgroup per matrix.
struct Params { matrices: u32, count: u32, first: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> status: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn scan_finite(group: Group, ids: Ids) {
    let matrix = flat_group(group);
    if matrix >= params.matrices { return; }
    var top = 0u;
    for (var i = ids.local; i < params.count; i += THREADS) { top = max(top, magnitude(x[matrix * params.count + i])); }
    top = tree_max(top, ids.local);
    if ids.local == 0u {
        let old = select(status[matrix], 0u, params.first != 0u);
        status[matrix] = select(old, NOT_FINITE, old == 0u && top >= 0x7f800000u);
    }
}
