// After sweep number `sweep`: status 0 for matrices whose rows were all orthogonal when they were met in it, up to a `tolerance` on their cosines;
// else the number of the sweep. One thread per matrix.
struct Params { matrices: u32, places: u32, sweep: u32, tolerance: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> cosines: array<f32>;
@group(0) @binding(1) var<storage, read_write> status: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_converged(group: Group, ids: Ids) {
    let matrix = flat_thread(group, ids);
    if matrix >= params.matrices { return; }
    if status[matrix] == 0u || status[matrix] == NOT_FINITE { return; }
    var cosine = 0.0;
    for (var i = 0u; i < params.places; i += 1u) { cosine = max(cosine, cosines[matrix * params.places + i]); }
    status[matrix] = select(params.sweep, 0u, cosine <= params.tolerance);
}
