// The `k` largest of `count` logits of every row, largest first, ties by the lower id: of each run of THREADS · TURNS of them, so that a second pass
// over the winners follows where there are several runs. In the first pass (`named` 0) a logit's id is its place. Winners that there are none of
// get id NONE and -infinity; NaNs come first and have id NONE too.
struct Params { count: u32, k: u32, named: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> logit_ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> top: array<f32>;
@group(0) @binding(3) var<storage, read_write> top_ids: array<u32>;

const NONE: u32 = 0xffffffffu;

// Floats in the order of unsigned integers; every NaN above infinity, 0 for nothing, which becomes -infinity.
fn to_key(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    // Not an early return: with that, NVIDIA's compiler (580.159) takes every winner below for NONE.
    return select(key, NONE, (bits & 0x7fffffffu) > 0x7f800000u);
}
fn from_key(key: u32) -> f32 {
    let v = max(key, 0x007fffffu);
    return bitcast<f32>(select(select(~v, v & 0x7fffffffu, v >= 0x80000000u), 0x7fc00000u, v == NONE));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn top_k(group: Group, ids: Ids) {
    let row = group.id.y * params.count;
    var key: array<u32, TURNS>;
    var id: array<u32, TURNS>;
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = group.id.x * TILE_X + u * THREADS + ids.local;
        key[u] = 0u;
        id[u] = NONE;
        if i < params.count {
            id[u] = i;
            if params.named != 0u { id[u] = logit_ids[row + i]; }
            key[u] = to_key(logits[row + i]);
            if id[u] == NONE {
                // A NaN, told from others by its place, or nothing.
                key[u] = select(0u, NONE, key[u] == NONE);
                id[u] = i;
            }
        }
    }
    for (var round = 0u; round < params.k; round += 1u) {
        var best = 0u;
        for (var u = 0u; u < TURNS; u += 1u) { best = max(best, key[u]); }
        best = group_max_u32(best, ids);
        // The lowest id is the highest complement.
        var lowest = 0u;
        for (var u = 0u; u < TURNS; u += 1u) { if key[u] == best { lowest = max(lowest, ~id[u]); } }
        let winner = ~group_max_u32(lowest, ids);
        for (var u = 0u; u < TURNS; u += 1u) { if key[u] == best && id[u] == winner { key[u] = 0u; } }
        if ids.local == 0u {
            let place = (group.id.y * group.count.x + group.id.x) * params.k + round;
            // A NaN has no name.
            top[place] = from_key(best);
            top_ids[place] = select(winner, NONE, best == NONE || best == 0u);
        }
    }
}
