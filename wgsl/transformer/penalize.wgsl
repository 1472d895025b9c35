// Changes logits [rows, vocab] in place: the bias of each token is added; those of tokens that the sequence has are scaled away from being chosen, and
// lowered by how often they were generated. A row comes after the last of a run of tokens, and runs says which of the `sequences` it is (and, as elsewhere,
// how long it was). counts [sequences, vocab]: how often each token was generated; SEEN is set for those of a prompt. The last token of each run is
// counted first. biases [biases, vocab] are each sequence's, or all have the last. penalties [sequences]: repetition, its inverse, presence, frequency.
struct Params { length: u32, vocab: u32, sequences: u32, biases: u32, run: u32, zero: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> penalties: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> biases: array<f32>;
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> logits: array<f32>;

const SEEN: u32 = 0x80000000u;

// The number as it is, rounded: what a compiler does not know to be 0 keeps it from joining a product with a sum.
fn rounded(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ params.zero); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn penalize(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let token = i % params.vocab;
    let row = i / params.vocab;
    let sequence = min(runs[row].x, params.sequences - 1u);
    let at = sequence * params.vocab + token;
    var count = counts[at];
    if tokens[row * params.run + params.run - 1u] == token {
        count += 1u;
        counts[at] = count;
    }
    var logit = logits[i];
    let bias = biases[min(sequence, params.biases - 1u) * params.vocab + token];
    if bias != 0.0 { logit = rounded(logit + bias); }
    let price = penalties[sequence];
    if count != 0u { logit = rounded(logit * select(price.x, price.y, logit > 0.0)); }
    let generated = count & ~SEEN;
    if generated != 0u { logit = rounded(logit - rounded(price.z + rounded(price.w * f32(generated)))); }
    logits[i] = logit;
}
