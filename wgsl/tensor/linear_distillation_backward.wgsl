// The gradient of linear_distillation.wgsl for a chunk of the student's logits, in their place: dloss·((1 - teacher)·(e^(s - lse0) - [column is the
// target]) + teacher·T·(e^(s / T - lse1) - e^(t / T - lse2))); 0 for rows that are ignored, NaN for those whose target is no other column. One thread
// per logit.
struct Params {
    rows: u32, columns: u32, lanes: u32, first: u32, vocabulary: u32, last: u32, ignores: u32, ignored: u32, temperature: f32, teacher: f32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> teacher_logits: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> dloss: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn linear_distillation_backward(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.rows * params.columns { return; }
    let row = i / params.columns;
    let column = params.first + i % params.columns;
    let id = targets[row];
    let s = logits[i];
    let t = params.temperature;
    let hard = exp_negative(s - lse[3u * row]) - select(0.0, 1.0, column == id);
    let soft = exp_negative(s / t - lse[3u * row + 1u]) - exp_negative(teacher_logits[i] / t - lse[3u * row + 2u]);
    var bits = bitcast<u32>(((1.0 - params.teacher) * hard + params.teacher * t * soft) * dloss[row]);
    if id >= params.vocabulary { bits = 0x7fc00000u; }
    if params.ignores != 0u && id == params.ignored { bits = 0u; }
    logits[i] = bitcast<f32>(bits);
}
