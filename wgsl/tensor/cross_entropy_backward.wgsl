// The gradient of cross_entropy: dx = dloss·(softmax(x) - (1 - smoothing)·[column is the target] - smoothing / columns) for rows of logits; 0 for
// those that are ignored, NaN for other targets that are no column. The result is added to dx if `add` is not 0. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, ignores: u32, ignored: u32, add: u32, smoothing: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<X>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> dloss: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<X>;

alias Acc = vec2<f32>;
fn combine(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> { return join(a, b); }

// A thread's next four logits.
fn four(at: u32) -> vec4<f32> {
    let lanes = params.lanes;
    return vec4<f32>(f32(logits[at]), f32(logits[at + lanes]), f32(logits[at + 2u * lanes]), f32(logits[at + 3u * lanes]));
}

fn put(row: u32, i: u32, shifted: f32, scale: f32) {
    let id = targets[row];
    let wanted = select(0.0, 1.0 - params.smoothing, i == id) + params.smoothing / f32(params.columns);
    var bits = bitcast<u32>((exp_negative(shifted) * scale - wanted) * dloss[row]);
    if id >= params.columns { bits = 0x7fc00000u; }
    if params.ignores != 0u && id == params.ignored { bits = 0u; }
    let v = bitcast<f32>(bits);
    let at = row * params.columns + i;
    if params.add != 0u { dx[at] = X(f32(dx[at]) + v); } else { dx[at] = X(v); }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn cross_entropy_backward(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var acc = NOTHING;
    var i = lane;
    // Four whose loads wait together.
    for (; i + 3u * params.lanes < columns; i += 4u * params.lanes) {
        let v = four(first + i);
        acc = join(join(join(join(acc, vec2<f32>(v.x, 1.0)), vec2<f32>(v.y, 1.0)), vec2<f32>(v.z, 1.0)), vec2<f32>(v.w, 1.0));
    }
    for (; i < columns; i += params.lanes) { acc = join(acc, vec2<f32>(f32(logits[first + i]), 1.0)); }
    acc = over_lanes(acc, params.lanes, 1u, ids.local);
    if row >= params.rows { return; }
    let scale = 1.0 / acc.y;
    for (i = lane; i + 3u * params.lanes < columns; i += 4u * params.lanes) {
        let v = four(first + i) - acc.x;
        put(row, i, v.x, scale);
        put(row, i + params.lanes, v.y, scale);
        put(row, i + 2u * params.lanes, v.z, scale);
        put(row, i + 3u * params.lanes, v.w, scale);
    }
    for (; i < columns; i += params.lanes) { put(row, i, f32(logits[first + i]) - acc.x, scale); }
}
