// The key of the largest logit of each chunk; and the bins of the passes to come are emptied.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> largest: array<u32>;
@group(0) @binding(2) var<storage, read_write> bins: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sample_largest(group: Group, ids: Ids) {
    let row = group.id.y;
    var key = 0u;
    for (var u = 0u; u < TURNS; u += 1u) { key = max(key, key_at(row, first_column(group, ids) + u)); }
    key = group_max_by_reads_u32(key, ids);
    if ids.local == 0u { largest[row * params.chunks + group.id.x] = key; }
    let words = 512u * params.passes;
    if group.id.x == 0u {
        for (var i = ids.local; i < words; i += THREADS) { bins[row * words + i] = 0u; }
    }
}
