// y = fake_quantize(x) of every row of x [rows, columns], by the scale a = 127 / max(max|x|, 1e-5) of the row; added to y if `add` is not 0. A row is
// shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, add: u32, lambda: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn fake_quantize_activations(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var bits = identity();
    for (var i = lane; i < columns; i += params.lanes) { bits = combine(bits, load(f32(x[first + i]))); }
    bits = over_lanes(bits, params.lanes, 1u, ids.local);
    let finite = bits < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 127.0);
    for (var i = lane; i < columns; i += params.lanes) {
        let at = first + i;
        let v = fake_quantize(f32(x[at]), scale, finite);
        if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
    }
}
