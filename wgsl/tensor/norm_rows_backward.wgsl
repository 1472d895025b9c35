// The gradient of layer_norm at x [rows, columns], or of an RMS norm, where `center` is 0 and no mean is taken: dx = (g - mean g - n·mean(g·n)) /
// sqrt(variance + eps), where n is the normed x, g = dy·weight, and the middle term is a layer norm's. `statistics` [rows, 2] get the mean and 1 /
// sqrt(..), for the gradient of the weight. The result is added to dx if `add` is not 0. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, center: u32, add: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<X>;
@group(0) @binding(3) var<storage, read_write> dx: array<X>;
@group(0) @binding(4) var<storage, read_write> statistics: array<f32>;

alias Acc = vec2<f32>;
fn combine(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> { return a + b; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn norm_rows_backward(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    let center = params.center != 0u;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    let count = f32(params.columns);
    // Σ x and Σ g, of which an RMS norm needs none.
    var acc = vec2<f32>(0.0);
    for (var i = lane; i < columns; i += params.lanes) { acc += vec2<f32>(f32(x[first + i]), f32(dy[first + i]) * weight[i]); }
    let means = select(vec2<f32>(0.0), over_lanes(acc, params.lanes, 1u, ids.local) / count, center);
    // Σ d² and Σ g·d for the deviations d.
    acc = vec2<f32>(0.0);
    for (var i = lane; i < columns; i += params.lanes) {
        let v = f32(x[first + i]) - means.x;
        acc += vec2<f32>(v, f32(dy[first + i]) * weight[i]) * v;
    }
    acc = over_lanes(acc, params.lanes, 1u, ids.local) / count;
    let inverse = 1.0 / sqrt(acc.x + params.eps);
    for (var i = lane; i < columns; i += params.lanes) {
        let at = first + i;
        let n = (f32(x[at]) - means.x) * inverse;
        let v = inverse * (f32(dy[at]) * weight[i] - means.y - n * (acc.y * inverse));
        if params.add != 0u { dx[at] = X(f32(dx[at]) + v); } else { dx[at] = X(v); }
    }
    if lane == 0u && row < params.rows {
        statistics[2u * row] = means.x;
        statistics[2u * row + 1u] = inverse;
    }
}
