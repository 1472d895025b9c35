// Clamps x [rows, 2·features] in place, whose rows have gates, then ups: gates to at most `limit`, ups to -limit to limit. NaNs stay. One thread per
// number.
struct Params { length: u32, features: u32, limit: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn clamp_gates(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let v = x[index];
    let low = select(-params.limit, v, index / params.features % 2u == 0u);
    x[index] = select(select(v, low, v < low), params.limit, v > params.limit);
}
