// The gradient of linear_cross_entropy.wgsl for a chunk of its logits, [rows, columns], columns first.. of `vocabulary`, in their place:
// dloss·(e^(x - lse) - (1 - smoothing)·[column is the target] - smoothing / vocabulary); 0 for rows that are ignored, NaN for those whose target is
// no other column. One thread per logit.
struct Params { length: u32, columns: u32, first: u32, vocabulary: u32, ignores: u32, ignored: u32, smoothing: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> dloss: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn linear_cross_entropy_backward(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let row = i / params.columns;
    let column = params.first + i % params.columns;
    let id = targets[row];
    let wanted = select(0.0, 1.0 - params.smoothing, column == id) + params.smoothing / f32(params.vocabulary);
    var bits = bitcast<u32>((exp_negative(logits[i] - lse[row]) - wanted) * dloss[row]);
    if id >= params.vocabulary { bits = 0x7fc00000u; }
    if params.ignores != 0u && id == params.ignored { bits = 0u; }
    logits[i] = bitcast<f32>(bits);
}
