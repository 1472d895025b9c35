// The experts that each token uses: those of its `used` largest logits [tokens, experts], of equal ones the first, and their weights. A weight is
// e^(logit - largest), divided by the sum of these of the used experts, or of all where `normalized` is 0. One workgroup per token; a thread has two
// experts, and counts those before each. Where a logit is not finite, experts are NONE, and weights NaN. Outputs are [tokens, used].
struct Params { tokens: u32, experts: u32, used: u32, normalized: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;

// Four to a vector; 0 where there is no expert.
var<workgroup> keys: array<vec4<u32>, THREADS / 2u>;
// Of all experts, then of the used ones.
var<workgroup> powers: array<f32, 2u * THREADS>;
var<workgroup> ranked: array<f32, 16>;
var<workgroup> largest: f32;
// Keys of the first and of the last expert.
var<workgroup> ends: array<u32, 2>;

fn key_of(token: u32, expert: u32) -> u32 {
    let logit = logits[token * params.experts + min(expert, params.experts - 1u)];
    return select(0u, to_key(logit), expert < params.experts);
}

// How many experts come before one of this key, which is above 0.
fn rank_of(expert: u32, own: u32) -> u32 {
    var before = 0u;
    for (var i = 0u; i < (params.experts + 3u) / 4u; i += 1u) {
        let four = keys[i];
        // Of equal logits the first comes first.
        before += u32(four.x > own - u32(4u * i < expert)) + u32(four.y > own - u32(4u * i + 1u < expert));
        before += u32(four.z > own - u32(4u * i + 2u < expert)) + u32(four.w > own - u32(4u * i + 3u < expert));
    }
    return before;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn route(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    var logit = array<f32, 2>();
    for (var u = 0u; u < 2u; u += 1u) {
        let expert = u * THREADS + ids.local;
        if expert < params.experts { logit[u] = logits[token * params.experts + expert]; }
    }
    if ids.local < THREADS / 2u {
        let first = 4u * ids.local;
        keys[ids.local] = vec4<u32>(key_of(token, first), key_of(token, first + 1u), key_of(token, first + 2u), key_of(token, first + 3u));
    }
    workgroupBarrier();
    var rank = array<u32, 2>(2u * THREADS, 2u * THREADS);
    for (var u = 0u; u < 2u; u += 1u) {
        let expert = u * THREADS + ids.local;
        if expert < params.experts {
            let key = to_key(logit[u]);
            rank[u] = rank_of(expert, key);
            if rank[u] == 0u {
                largest = logit[u];
                ends[0] = key;
            }
            if rank[u] + 1u == params.experts { ends[1] = key; }
        }
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
    var total = 0.0;
    if params.normalized != 0u {
        for (var i = 0u; i < params.used; i += 1u) { total += ranked[i]; }
    } else {
        // Halves are added, so that the order is the same on every device.
        for (var size = THREADS; size > 0u; size /= 2u) {
            if ids.local < size { powers[ids.local] += powers[ids.local + size]; }
            workgroupBarrier();
        }
        total = powers[0];
    }
    let finite = is_finite_key(ends[0]) && is_finite_key(ends[1]);
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
