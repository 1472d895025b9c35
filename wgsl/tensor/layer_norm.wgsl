// y = (x - mean) / sqrt(variance + eps) · weight + bias for rows of x [rows, columns]; the mean comes first, so that the deviations keep their
// digits. The result is added to y if `add` is not 0. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, add: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<X>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn layer_norm(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    let count = f32(params.columns);
    var sum = identity();
    for (var i = lane; i < columns; i += params.lanes) { sum += f32(x[first + i]); }
    let mean = over_lanes(sum, params.lanes, 1u, ids.local) / count;
    var squares = identity();
    for (var i = lane; i < columns; i += params.lanes) {
        let v = f32(x[first + i]) - mean;
        squares += v * v;
    }
    let inverse = 1.0 / sqrt(over_lanes(squares, params.lanes, 1u, ids.local) / count + params.eps);
    for (var i = lane; i < columns; i += params.lanes) {
        let at = first + i;
        let v = (f32(x[at]) - mean) * inverse * weight[i] + bias[i];
        if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
    }
}
