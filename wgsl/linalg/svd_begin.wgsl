// The power of two that brings the numbers of A [count] near 1, and the status with which svd starts: 1, not converged, or NOT_FINITE.
// One workgroup per matrix.
struct Params { matrices: u32, count: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_begin(group: Group, ids: Ids) {
    let matrix = flat_group(group);
    if matrix >= params.matrices { return; }
    var top = 0u;
    for (var i = ids.local; i < params.count; i += THREADS) { top = max(top, magnitude(a[matrix * params.count + i])); }
    top = tree_max(top, ids.local);
    if ids.local == 0u {
        scale[matrix] = down_scale(top);
        status[matrix] = select(1u, NOT_FINITE, top >= 0x7f800000u);
    }
}
