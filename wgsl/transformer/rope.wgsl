// Rotary positions, halves convention: (a, b) = (v[i], v[i + D/2]) becomes (a·cos - b·sin, b·cos + a·sin). A row of qkv holds `heads` queries,
// then `kv_heads` keys, then as many values: queries are rotated where they are, keys are rotated into the cache, values are copied there.
// A thread takes a pair. Token t is number t mod `run` of sequence `slot + t / run`, which is `positions[..]` tokens long so far.
//
// The caches, Q = ceil(D / 4): keys [slot, head, Q, capacity] of four, so that neighbouring positions lie together; values
// [slot, head, capacity, Q] of four. What pads D is never written and stays zero.
struct Params { tokens: u32, run: u32, slot: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> positions: array<u32>;
@group(0) @binding(1) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(3) var<storage, read_write> keys: array<C>;
@group(0) @binding(4) var<storage, read_write> values: array<C>;

fn key_place(row: u32, i: u32, position: u32) -> u32 {
    return ((row * ((params.head_dim + 3u) / 4u) + i / 4u) * params.capacity + position) * 4u + i % 4u;
}

fn value_place(row: u32, i: u32, position: u32) -> u32 {
    return (row * params.capacity + position) * ((params.head_dim + 3u) / 4u) * 4u + i;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rope(group: Group, ids: Ids) {
    let place = flat_thread(group, ids);
    let half = params.head_dim / 2u;
    let heads = params.heads + 2u * params.kv_heads;
    let token = place / (heads * half);
    if token >= params.tokens { return; }
    let head = place / half % heads;
    let i = place % half;
    let slot = params.slot + token / params.run;
    let position = positions[slot] + token % params.run;
    if position >= params.capacity { return; }
    let at = (token * heads + head) * params.head_dim + i;
    let a = qkv[at];
    let b = qkv[at + half];
    let angle = angles[position * half + i];
    let turned = vec2<f32>(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
    if head < params.heads {
        qkv[at] = turned.x;
        qkv[at + half] = turned.y;
    } else if head < params.heads + params.kv_heads {
        let row = slot * params.kv_heads + head - params.heads;
        keys[key_place(row, i, position)] = C(turned.x);
        keys[key_place(row, i + half, position)] = C(turned.y);
    } else {
        let row = slot * params.kv_heads + head - params.heads - params.kv_heads;
        values[value_place(row, i, position)] = C(a);
        values[value_place(row, i + half, position)] = C(b);
    }
}
