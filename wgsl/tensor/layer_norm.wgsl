// y = (x - mean) / sqrt(variance + eps) · weight + bias for rows of x [rows, columns]; the mean comes first, so that the deviations keep their
// digits. The result is added to y if `add` is not 0. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, add: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<X>;

alias Held = f32;
fn number(first: u32, i: u32) -> f32 { return f32(x[first + i]); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn layer_norm(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    let count = f32(params.columns);
    var sum = identity();
    for (var start = lane; start < columns; start += turn()) {
        hold(first, start, columns);
        for (var h = 0u; h < HELD; h += 1u) {
            if start + h * params.lanes >= columns { break; }
            sum += held[h];
        }
    }
    let mean = over_lanes(sum, params.lanes, 1u, ids.local) / count;
    var squares = identity();
    for (var start = lane; start < columns; start += turn()) {
        hold_again(first, start, columns);
        for (var h = 0u; h < HELD; h += 1u) {
            if start + h * params.lanes >= columns { break; }
            squares += (held[h] - mean) * (held[h] - mean);
        }
    }
    let inverse = 1.0 / sqrt(over_lanes(squares, params.lanes, 1u, ids.local) / count + params.eps);
    for (var start = lane; start < columns; start += turn()) {
        hold_again(first, start, columns);
        for (var h = 0u; h < HELD; h += 1u) {
            let i = start + h * params.lanes;
            if i >= columns { break; }
            let v = (held[h] - mean) * inverse * weight[i] + bias[i];
            let at = first + i;
            if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
        }
    }
}
