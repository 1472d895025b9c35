// Rotary position embedding of heads of size D = head_dim, rotating halves: (a, b) = (v[i], v[i + D/2]) becomes (a·cos - b·sin, b·cos + a·sin). A row
// of qkv [tokens, ..] holds `heads` queries, then `kv_heads` keys, then as many values. Queries are rotated in place, keys are rotated into the
// cache, values are copied there. angles is [position, D/2] pairs (cos, sin). One thread per pair (a, b). Token t is the t mod `run`-th new token of
// run t / `run`: runs says of each which of the `sequences` it continues, and how many tokens that has so far.
//
// The caches hold vectors of four, Q = ceil(D / 4): keys [sequence, head, Q, capacity], so that neighboring positions are neighbors in memory; values
// [sequence, head, capacity, Q]. What pads D to 4·Q is never written and stays zero.
struct Params { tokens: u32, run: u32, sequences: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(3) var<storage, read_write> keys: array<C>;
@group(0) @binding(4) var<storage, read_write> values: array<C>;

// Element i of a position in the caches of one head; `row` is sequence·kv_heads + head.
fn key_index(row: u32, i: u32, position: u32) -> u32 {
    return ((row * ((params.head_dim + 3u) / 4u) + i / 4u) * params.capacity + position) * 4u + i % 4u;
}

fn value_index(row: u32, i: u32, position: u32) -> u32 {
    return (row * params.capacity + position) * ((params.head_dim + 3u) / 4u) * 4u + i;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rope(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    let half_dim = params.head_dim / 2u;
    let heads = params.heads + 2u * params.kv_heads;
    let token = index / (heads * half_dim);
    if token >= params.tokens { return; }
    let head = index / half_dim % heads;
    let i = index % half_dim;
    let run = runs[token / params.run];
    let sequence = min(run.x, params.sequences - 1u);
    let position = run.y + token % params.run;
    if position >= params.capacity { return; }
    let first = (token * heads + head) * params.head_dim + i;
    let a = qkv[first];
    let b = qkv[first + half_dim];
    let angle = angles[position * half_dim + i];
    let rotated = vec2<f32>(turned(a, -b, angle), turned(b, a, angle));
    if head < params.heads {
        qkv[first] = rotated.x;
        qkv[first + half_dim] = rotated.y;
    } else if head < params.heads + params.kv_heads {
        let row = sequence * params.kv_heads + head - params.heads;
        keys[key_index(row, i, position)] = C(rotated.x);
        keys[key_index(row, i + half_dim, position)] = C(rotated.y);
    } else {
        let row = sequence * params.kv_heads + head - params.heads - params.kv_heads;
        values[value_index(row, i, position)] = C(a);
        values[value_index(row, i + half_dim, position)] = C(b);
    }
}
