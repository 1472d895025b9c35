// The `k` largest of the `count` logits in each row of logits [rows, count], largest first, equal ones by the lower id; a logit's id is its index in
// the row. A workgroup finds those of one run of TILE_X = THREADS · TURNS logits, and writes top and top_ids [rows, runs, k]; where there are several
// runs, top_k_merge follows. NaNs come first, with id NONE. Where there are fewer than k logits, the rest are -infinity with id NONE.
// With `finite`, an infinity has id NONE too.
struct Params { count: u32, k: u32, finite: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> top: array<f32>;
@group(0) @binding(2) var<storage, read_write> top_ids: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn top_k(group: Group, ids: Ids) {
    let row = group.id.y * params.count;
    var key = array<u32, TURNS>();
    var id = array<u32, TURNS>();
    for (var u = 0u; u < TURNS; u += 1u) {
        let i = group.id.x * TILE_X + u * THREADS + ids.local;
        id[u] = i;
        if i < params.count { key[u] = to_key(logits[row + i]); }
    }
    write_winners(&key, &id, group, ids);
}
