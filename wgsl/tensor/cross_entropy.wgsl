// loss = (1 - smoothing)·(ln Σ e^x - x[target]) + smoothing·(ln Σ e^x - mean x) for rows of logits [rows, columns]. 0 where the target is `ignored`
// and `ignores` is not 0, NaN for other targets that are no column. The result is added to loss if `add` is not 0. A row is shared by `lanes`
// threads.
struct Params { rows: u32, columns: u32, lanes: u32, ignores: u32, ignored: u32, add: u32, smoothing: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<X>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> loss: array<f32>;

// What softmax needs, and Σ x.
alias Acc = vec3<f32>;
fn combine(a: vec3<f32>, b: vec3<f32>) -> vec3<f32> {
    let joined = join(a.xy, b.xy);
    return vec3<f32>(joined.x, joined.y, a.z + b.z);
}

fn number(v: f32) -> vec3<f32> { return vec3<f32>(v, 1.0, v); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn cross_entropy(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var acc = vec3<f32>(NOTHING.x, NOTHING.y, 0.0);
    var i = lane;
    // Four whose loads wait together.
    for (; i + 3u * params.lanes < columns; i += 4u * params.lanes) {
        let at = first + i + params.lanes * vec4<u32>(0u, 1u, 2u, 3u);
        let v = vec4<f32>(f32(logits[at.x]), f32(logits[at.y]), f32(logits[at.z]), f32(logits[at.w]));
        acc = combine(combine(combine(combine(acc, number(v.x)), number(v.y)), number(v.z)), number(v.w));
    }
    for (; i < columns; i += params.lanes) { acc = combine(acc, number(f32(logits[first + i]))); }
    acc = over_lanes(acc, params.lanes, 1u, ids.local);
    if lane != 0u || row >= params.rows { return; }
    let id = targets[row];
    var v = 0.0;
    if params.ignores == 0u || id != params.ignored {
        v = bitcast<f32>(select(0x7fc00000u, 0u, id < params.columns));
        if id < params.columns {
            v = log_positive(acc.y) + (1.0 - params.smoothing) * (acc.x - f32(logits[first + id]));
            // Without smoothing, a logit of -infinity counts for nothing.
            if params.smoothing != 0.0 { v += params.smoothing * (acc.x - acc.z / f32(params.columns)); }
        }
    }
    if params.add != 0u { loss[row] += v; } else { loss[row] = v; }
}
