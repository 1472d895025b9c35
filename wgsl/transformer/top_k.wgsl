// The `k` largest of the `count` logits in each row of logits [rows, count], largest first, equal ones by the lower id. A workgroup finds them in one
// run of TILE_X = THREADS · TURNS logits of a row, and writes top and top_ids [rows, runs, k]; where there are several runs, a second pass over the
// winners follows. A logit's id is its index in the row, or logit_ids has it if `named` is not 0, as in a second pass. NaNs come first, with id NONE.
// Where there are fewer than k logits, the rest are -infinity with id NONE.
struct Params { count: u32, k: u32, named: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> logit_ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> top: array<f32>;
@group(0) @binding(3) var<storage, read_write> top_ids: array<u32>;

const NONE: u32 = 0xffffffffu;

// Maps floats to unsigned integers in the same order, every NaN to NONE, the largest. 0 stands for no logit; back from a key, it is -infinity.
fn to_key(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    // No early return for NaN: with one, NVIDIA's compiler (580.159) makes every winner below NONE.
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
                // A winner of the first pass that was a NaN, or no logit. Its index tells it from others.
                key[u] = select(0u, NONE, key[u] == NONE);
                id[u] = i;
            }
        }
    }
    for (var round = 0u; round < params.k; round += 1u) {
        var best = 0u;
        for (var u = 0u; u < TURNS; u += 1u) { best = max(best, key[u]); }
        best = group_max_u32(best, ids);
        // The lowest id has the highest complement.
        var lowest = 0u;
        for (var u = 0u; u < TURNS; u += 1u) { if key[u] == best { lowest = max(lowest, ~id[u]); } }
        let winner = ~group_max_u32(lowest, ids);
        for (var u = 0u; u < TURNS; u += 1u) { if key[u] == best && id[u] == winner { key[u] = 0u; } }
        if ids.local == 0u {
            let output = (group.id.y * group.count.x + group.id.x) * params.k + round;
            top[output] = from_key(best);
            top_ids[output] = select(winner, NONE, best == NONE || best == 0u);
        }
    }
}
