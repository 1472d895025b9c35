// dx = y·(dy - Σ y·dy) for rows of y [rows, columns], which softmax gave; where it gave logarithms (`logarithm` is not 0), dx = dy - e^y·Σ dy. The
// result is added to dx if `add` is not 0. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, logarithm: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> y: array<X>;
@group(0) @binding(1) var<storage, read> dy: array<X>;
@group(0) @binding(2) var<storage, read_write> dx: array<X>;

alias Held = vec2<f32>;
fn number(first: u32, i: u32) -> vec2<f32> { return vec2<f32>(f32(y[first + i]), f32(dy[first + i])); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn softmax_backward(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    let logarithm = params.logarithm != 0u;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var sum = identity();
    for (var start = lane; start < columns; start += turn()) {
        hold(first, start, columns);
        for (var h = 0u; h < HELD; h += 1u) {
            if start + h * params.lanes >= columns { break; }
            sum += held[h].y * select(held[h].x, 1.0, logarithm);
        }
    }
    sum = over_lanes(sum, params.lanes, 1u, ids.local);
    for (var start = lane; start < columns; start += turn()) {
        hold_again(first, start, columns);
        for (var h = 0u; h < HELD; h += 1u) {
            let i = start + h * params.lanes;
            if i >= columns { break; }
            var v = held[h].x * (held[h].y - sum);
            if logarithm { v = held[h].y - exp_negative(held[h].x) * sum; }
            let at = first + i;
            if params.add != 0u { dx[at] = X(f32(dx[at]) + v); } else { dx[at] = X(v); }
        }
    }
}
