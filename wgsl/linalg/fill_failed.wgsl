// NaN in all `count` numbers y of a matrix with which something is wrong. One thread per number.
struct Params { length: u32, count: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> status: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn fill_failed(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let wrong = status[index / params.count];
    // A constant NaN is no WGSL.
    if wrong != 0u { y[index] = bitcast<f32>(0x7fc00000u | min(wrong, 1u)); }
}
