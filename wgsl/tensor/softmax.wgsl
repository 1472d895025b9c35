// y = e^(x - largest) / Σ e^(x - largest) of every row of x [rows, columns], or its logarithm where `logarithm` is not 0. Where `queries` is not 0,
// row r sees no more than its first r % queries + 1 + beyond columns, and never a column that is `hidden`; of others y is 0. The result is added to y if
// `add` is not 0. A row is shared by `lanes` threads.
struct Params {
    rows: u32, columns: u32, lanes: u32, queries: u32, beyond: i32, logarithm: u32, add: u32,
    n1: u32, n2: u32, m0: u32, m1: u32, m2: u32, m3: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<X>;

alias Acc = vec2<f32>;
fn identity() -> vec2<f32> { return NOTHING; }
fn combine(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> { return join(a, b); }
fn number(first: u32, i: u32) -> vec2<f32> {
    if hidden(first, i) { return NOTHING; }
    return vec2<f32>(f32(x[first + i]), 1.0);
}

fn put(first: u32, i: u32, seen: u32, shifted: f32, logarithm: f32, scale: f32) {
    let at = first + i;
    var v = select(exp_negative(shifted) * scale, shifted - logarithm, params.logarithm != 0u);
    if i >= seen || hidden(first, i) { v = 0.0; }
    if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn softmax(group: Group, ids: Ids) {
    let share = share(group, ids, params.lanes);
    let first = share.row * params.columns;
    var columns = params.columns;
    var seen = columns;
    if params.queries != 0u { seen = u32(clamp(i32(share.row % params.queries) + 1 + params.beyond, 0, i32(columns))); }
    // Threads beyond the last row wait for the others.
    if share.row >= params.rows { columns = 0u; seen = 0u; }
    let acc = over_row(first, 0u, seen, params.lanes, ids);
    let logarithm = log_positive(acc.y);
    let scale = 1.0 / acc.y;
    var i = share.lane;
    for (; i + 3u * share.step < columns; i += 4u * share.step) {
        let at = first + i + share.step * vec4<u32>(0u, 1u, 2u, 3u);
        let v = vec4<f32>(f32(x[at.x]), f32(x[at.y]), f32(x[at.z]), f32(x[at.w]));
        put(first, i, seen, v.x - acc.x, logarithm, scale);
        put(first, i + share.step, seen, v.y - acc.x, logarithm, scale);
        put(first, i + 2u * share.step, seen, v.z - acc.x, logarithm, scale);
        put(first, i + 3u * share.step, seen, v.w - acc.x, logarithm, scale);
    }
    for (; i < columns; i += share.step) { put(first, i, seen, f32(x[first + i]) - acc.x, logarithm, scale); }
}
