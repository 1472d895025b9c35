// cross_entropy.wgsl for logits that come in chunks: those of columns first.. of `vocabulary`, [rows, columns]. Of what came so far, `running` has
// four numbers a row: the largest logit, Σ e^(x - largest), Σ x and the target's logit. With the last chunk, loss and lse = ln Σ e^x are written;
// the loss is added if `add` is not 0. A row is shared by `lanes` threads.
struct Params {
    rows: u32, columns: u32, lanes: u32, first: u32, vocabulary: u32, last: u32, ignores: u32, ignored: u32, add: u32, smoothing: f32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> running: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> loss: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

// What softmax needs, and Σ x.
alias Acc = vec3<f32>;
fn combine(a: vec3<f32>, b: vec3<f32>) -> vec3<f32> {
    let joined = join(a.xy, b.xy);
    return vec3<f32>(joined.x, joined.y, a.z + b.z);
}

// The loss of a row, of which all has come.
fn of_row(all: vec4<f32>, id: u32) -> f32 {
    if params.ignores != 0u && id == params.ignored { return 0.0; }
    var v = bitcast<f32>(select(0x7fc00000u, 0u, id < params.vocabulary));
    if id < params.vocabulary {
        v = log_positive(all.y) + (1.0 - params.smoothing) * (all.x - all.w);
        // Without smoothing, a logit of -infinity counts for nothing.
        if params.smoothing != 0.0 { v += params.smoothing * (all.x - all.z / f32(params.vocabulary)); }
    }
    return v;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn linear_cross_entropy(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let start = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var acc = vec3<f32>(NOTHING.x, NOTHING.y, 0.0);
    for (var i = lane; i < columns; i += params.lanes) {
        let v = logits[start + i];
        acc = combine(acc, vec3<f32>(v, 1.0, v));
    }
    acc = over_lanes(acc, params.lanes, 1u, ids.local);
    if lane != 0u || row >= params.rows { return; }
    var before = vec4<f32>(NOTHING.x, NOTHING.y, 0.0, 0.0);
    if params.first != 0u { before = running[row]; }
    acc = combine(before.xyz, acc);
    var all = vec4<f32>(acc.x, acc.y, acc.z, before.w);
    let id = targets[row];
    if id >= params.first && id - params.first < columns { all.w = logits[start + id - params.first]; }
    running[row] = all;
    if params.last == 0u { return; }
    let v = of_row(all, id);
    if params.add != 0u { loss[row] += v; } else { loss[row] = v; }
    lse[row] = all.x + log_positive(all.y);
}
