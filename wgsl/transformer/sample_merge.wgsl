// The winner of each row among those of its chunks; NONE where the largest logit is not a finite number, or there is a NaN.
@group(0) @binding(0) var<storage, read> largest: array<u32>;
@group(0) @binding(1) var<storage, read> best: array<u32>;
@group(0) @binding(2) var<storage, read_write> chosen: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sample_merge(group: Group, ids: Ids) {
    let row = group.id.y;
    let top = largest_key(row, ids);
    var time = 0u;
    for (var i = ids.local; i < params.chunks; i += THREADS) { time = max(time, best[2u * (row * params.chunks + i)]); }
    time = group_max_by_reads_u32(time, ids);
    var lowest = 0u;
    for (var i = ids.local; i < params.chunks; i += THREADS) {
        let at = 2u * (row * params.chunks + i);
        if best[at] == time { lowest = max(lowest, ~best[at + 1u]); }
    }
    let winner = ~group_max_by_reads_u32(lowest, ids);
    if ids.local == 0u { chosen[row] = select(NONE, winner, is_finite_key(top)); }
}
