// Changes logits [rows, vocab] in place: the bias of each token is added; those of tokens that the sequence has are scaled away from being chosen, and
// lowered by how often they were generated. Of each row, runs says which of the `sequences` it is (and, as elsewhere, how long it was). counts
// [sequences, vocab]: how often each token was generated; SEEN is set for those of a prompt. The last token of each sequence is counted first.
struct Params { length: u32, vocab: u32, sequences: u32, repetition: f32, inverse: f32, presence: f32, frequency: f32, zero: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> counts: array<u32>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;

const SEEN: u32 = 0x80000000u;

// The number as it is, rounded: what a compiler does not know to be 0 keeps it from joining a product with a sum.
fn rounded(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ params.zero); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn penalize(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let token = i % params.vocab;
    let row = i / params.vocab;
    let at = min(runs[row].x, params.sequences - 1u) * params.vocab + token;
    var count = counts[at];
    if tokens[row] == token {
        count += 1u;
        counts[at] = count;
    }
    var logit = logits[i];
    if bias[token] != 0.0 { logit = rounded(logit + bias[token]); }
    if count != 0u { logit = rounded(logit * select(params.repetition, params.inverse, logit > 0.0)); }
    let generated = count & ~SEEN;
    if generated != 0u { logit = rounded(logit - rounded(params.presence + rounded(params.frequency * f32(generated)))); }
    logits[i] = logit;
}
