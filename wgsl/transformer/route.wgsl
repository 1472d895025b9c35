// The experts that each token uses: those of its `used` largest logits [tokens, experts], of equal ones the first, and their weights. A weight is
// e^(logit - largest), divided by the sum of these of the used experts, or of all where `normalized` is 0. One workgroup per token; a thread has two
// experts, and counts those before each. Where a logit is not finite, experts are NONE, and weights NaN. Outputs are [tokens, used].
struct Params { tokens: u32, experts: u32, used: u32, normalized: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;

var<workgroup> keys: array<u32, 2u * THREADS>;
// Of all experts, then of the used ones.
var<workgroup> powers: array<f32, 2u * THREADS>;
var<workgroup> ranked: array<f32, 16>;
var<workgroup> largest: f32;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn route(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    var logit = array<f32, 2>();
    for (var u = 0u; u < 2u; u += 1u) {
        let expert = u * THREADS + ids.local;
        if expert < params.experts {
            logit[u] = logits[token * params.experts + expert];
            keys[expert] = to_key(logit[u]);
        }
    }
    workgroupBarrier();
    var rank = array<u32, 2>();
    var finite = true;
    for (var i = 0u; i < params.experts; i += 1u) {
        let key = keys[i];
        finite = finite && is_finite_key(key);
        for (var u = 0u; u < 2u; u += 1u) {
            let expert = u * THREADS + ids.local;
            let own = keys[min(expert, params.experts - 1u)];
            if key > own || (key == own && i < expert) { rank[u] += 1u; }
        }
    }
    for (var u = 0u; u < 2u; u += 1u) {
        if u * THREADS + ids.local < params.experts && rank[u] == 0u { largest = logit[u]; }
    }
    workgroupBarrier();
    var power = array<f32, 2>();
    for (var u = 0u; u < 2u; u += 1u) {
        let expert = u * THREADS + ids.local;
        if expert < params.experts {
            power[u] = exp_negative(logit[u] - largest);
            if rank[u] < params.used { ranked[rank[u]] = power[u]; }
        }
        powers[expert] = power[u];
    }
    workgroupBarrier();
    // Halves are added, so that the order is the same on every device.
    for (var size = THREADS; size > 0u; size /= 2u) {
        if ids.local < size { powers[ids.local] += powers[ids.local + size]; }
        workgroupBarrier();
    }
    var total = powers[0];
    if params.normalized != 0u {
        total = 0.0;
        for (var i = 0u; i < params.used; i += 1u) { total += ranked[i]; }
    }
    for (var u = 0u; u < 2u; u += 1u) {
        let expert = u * THREADS + ids.local;
        if expert < params.experts && rank[u] < params.used {
            let output = token * params.used + rank[u];
            var bits = bitcast<u32>(power[u] / total);
            if !finite { bits = 0x7fc00000u; }
            chosen[output] = select(NONE, expert, finite);
            weights[output] = bitcast<f32>(bits);
        }
    }
}
