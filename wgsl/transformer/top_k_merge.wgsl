// The `k` largest among the winners of top_k.wgsl: logits and logit_ids [rows, count] are those of all runs. Outputs are as there.
struct Params { count: u32, k: u32, finite: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> logit_ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> top: array<f32>;
@group(0) @binding(3) var<storage, read_write> top_ids: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn top_k_merge(group: Group, ids: Ids) {
    let row = group.id.y * params.count;
    var key = array<u32, TURNS>();
    var id = array<u32, TURNS>();
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = group.id.x * TILE_X + u * THREADS + ids.local;
        id[u] = NONE;
        if i < params.count {
            id[u] = logit_ids[row + i];
            key[u] = to_key(logits[row + i]);
            if id[u] == NONE {
                // A NaN, or no logit. Its index tells it from others.
                key[u] = select(0u, NONE, key[u] == NONE);
                id[u] = i;
            }
        }
    }
    write_winners(&key, &id, group, ids);
}
