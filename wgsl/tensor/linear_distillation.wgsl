// linear_distillation for logits that come in chunks: those of student and teacher for columns first.. of `vocabulary`, [rows, columns]. Of what came
// so far, `running` has eight numbers a row: of the student's logits s, the largest m, Σ e^(s - m), Σ e^((s - m) / T) and the target's; of the
// teacher's t, the largest n, Σ e^((t - n) / T) and Σ e^((t - n) / T)·(t - s). With the last chunk, loss and lse are written: ln Σ e^s, ln Σ e^(s / T)
// and ln Σ e^(t / T). A row is shared by `lanes` threads.
struct Params {
    rows: u32, columns: u32, lanes: u32, first: u32, vocabulary: u32, last: u32, ignores: u32, ignored: u32, temperature: f32, teacher: f32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> teacher_logits: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> running: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;

// What came of the student, without the target's logit, and of the teacher.
struct Acc { student: vec3<f32>, teacher: vec3<f32> }
const LOWEST: vec3<f32> = vec3<f32>(-3.4028234e38, 0.0, 0.0);

// A maximum and two sums of e^(rate·(x - maximum)). Of two such, that with the lower maximum is scaled down.
fn join(a: vec3<f32>, b: vec3<f32>, rates: vec2<f32>) -> vec3<f32> {
    let away = -abs(a.x - b.x);
    let scales = vec2<f32>(exp_negative(away * rates.x), exp_negative(away * rates.y));
    if a.x >= b.x { return vec3<f32>(a.x, a.y + b.y * scales.x, a.z + b.z * scales.y); }
    return vec3<f32>(b.x, a.y * scales.x + b.y, a.z * scales.y + b.z);
}

fn combine(a: Acc, b: Acc) -> Acc {
    let rate = 1.0 / params.temperature;
    return Acc(join(a.student, b.student, vec2<f32>(1.0, rate)), join(a.teacher, b.teacher, vec2<f32>(rate)));
}

// The loss of a row, of which all has come.
fn of_row(all: Acc, own: f32, id: u32) -> f32 {
    if params.ignores != 0u && id == params.ignored { return 0.0; }
    if id >= params.vocabulary { return bitcast<f32>(0x7fc00000u); }
    let s = all.student;
    let t = all.teacher;
    let hard = log_positive(s.y) + (s.x - own);
    let soft = (t.z / t.y + (s.x - t.x)) / params.temperature + (log_positive(s.z) - log_positive(t.y));
    return (1.0 - params.teacher) * hard + params.teacher * params.temperature * params.temperature * soft;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn linear_distillation(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let start = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var acc = Acc(LOWEST, LOWEST);
    for (var i = lane; i < columns; i += params.lanes) {
        let s = logits[start + i];
        let t = teacher_logits[start + i];
        acc = combine(acc, Acc(vec3<f32>(s, 1.0, 1.0), vec3<f32>(t, 1.0, t - s)));
    }
    acc = over_lanes(acc, params.lanes, 1u, ids.local);
    if lane != 0u || row >= params.rows { return; }
    var own = 0.0;
    if params.first != 0u {
        let student = running[2u * row];
        own = student.w;
        acc = combine(Acc(student.xyz, running[2u * row + 1u].xyz), acc);
    }
    let id = targets[row];
    if id >= params.first && id - params.first < columns { own = logits[start + id - params.first]; }
    running[2u * row] = vec4<f32>(acc.student.x, acc.student.y, acc.student.z, own);
    running[2u * row + 1u] = vec4<f32>(acc.teacher.x, acc.teacher.y, acc.teacher.z, 0.0);
    if params.last == 0u { return; }
    loss[row] = of_row(acc, own, id);
    lse[3u * row] = acc.student.x + log_positive(acc.student.y);
    lse[3u * row + 1u] = acc.student.x / params.temperature + log_positive(acc.student.z);
    lse[3u * row + 2u] = acc.teacher.x / params.temperature + log_positive(acc.teacher.y);
}
