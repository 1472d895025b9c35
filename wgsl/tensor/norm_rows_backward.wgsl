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

// x and dy·weight of a column.
fn terms(first: u32, i: u32) -> vec2<f32> { return vec2<f32>(f32(x[first + i]), f32(dy[first + i]) * weight[i]); }

// The same of a thread's next four columns, whose loads wait together: all x, then all dy·weight.
struct Four { x: vec4<f32>, g: vec4<f32> }
fn four(first: u32, i: u32) -> Four {
    let a = terms(first, i);
    let b = terms(first, i + params.lanes);
    let c = terms(first, i + 2u * params.lanes);
    let d = terms(first, i + 3u * params.lanes);
    return Four(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}

fn put(at: u32, v: f32) {
    if params.add != 0u { dx[at] = X(f32(dx[at]) + v); } else { dx[at] = X(v); }
}

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
    var i = lane;
    if center {
        for (; i + 3u * params.lanes < columns; i += 4u * params.lanes) {
            let v = four(first, i);
            acc = (((acc + vec2<f32>(v.x.x, v.g.x)) + vec2<f32>(v.x.y, v.g.y)) + vec2<f32>(v.x.z, v.g.z)) + vec2<f32>(v.x.w, v.g.w);
        }
        for (; i < columns; i += params.lanes) { acc += terms(first, i); }
    }
    let means = over_lanes(acc, params.lanes, 1u, ids.local) / count;
    // Σ d² and Σ g·d for the deviations d.
    acc = vec2<f32>(0.0);
    for (i = lane; i + 3u * params.lanes < columns; i += 4u * params.lanes) {
        let v = four(first, i);
        let d = v.x - means.x;
        acc += vec2<f32>(d.x, v.g.x) * d.x;
        acc += vec2<f32>(d.y, v.g.y) * d.y;
        acc += vec2<f32>(d.z, v.g.z) * d.z;
        acc += vec2<f32>(d.w, v.g.w) * d.w;
    }
    for (; i < columns; i += params.lanes) {
        let v = terms(first, i);
        let d = v.x - means.x;
        acc += vec2<f32>(d, v.y) * d;
    }
    acc = over_lanes(acc, params.lanes, 1u, ids.local) / count;
    let inverse = 1.0 / sqrt(acc.x + params.eps);
    for (i = lane; i + 3u * params.lanes < columns; i += 4u * params.lanes) {
        let v = four(first, i);
        let n = (v.x - means.x) * inverse;
        let made = inverse * (v.g - means.y - n * (acc.y * inverse));
        put(first + i, made.x);
        put(first + i + params.lanes, made.y);
        put(first + i + 2u * params.lanes, made.z);
        put(first + i + 3u * params.lanes, made.w);
    }
    for (; i < columns; i += params.lanes) {
        let v = terms(first, i);
        let n = (v.x - means.x) * inverse;
        put(first + i, inverse * (v.y - means.y - n * (acc.y * inverse)));
    }
    if lane == 0u && row < params.rows {
        statistics[2u * row] = means.x;
        statistics[2u * row + 1u] = inverse;
    }
}
