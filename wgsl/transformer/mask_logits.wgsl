// Sets logits [rows, vocab] to -inf where a token is not allowed. masks [sequences, words]: bit token % 32 of word token / 32 allows a token; those
// beyond the last word are not allowed. runs says which of the sequences a row is of.
struct Params { length: u32, vocab: u32, sequences: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> masks: array<u32>;
@group(0) @binding(2) var<storage, read_write> logits: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn mask_logits(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let token = i % params.vocab;
    let sequence = min(runs[i / params.vocab].x, params.sequences - 1u);
    let word = token / 32u;
    var allowed = 0u;
    if word < params.words { allowed = masks[sequence * params.words + word] >> (token % 32u); }
    // A variable, since a constant expression must not be infinite.
    var lowest = 0xff800000u;
    if (allowed & 1u) == 0u { logits[i] = bitcast<f32>(lowest); }
}
