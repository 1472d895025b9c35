// What the kernels of sample share. The kernel that includes this has `largest` [rows, chunks], the largest key of each chunk of a row.
struct Params {
    count: u32, chunks: u32, passes: u32, pass_index: u32, kind: u32, before: u32, shift: u32, each: u32, skipped: u32, sequences: u32, zero: u32,
}
var<immediate> params: Params;

fn largest_key(row: u32, ids: Ids) -> u32 {
    var key = 0u;
    for (var i = ids.local; i < params.chunks; i += THREADS) { key = max(key, largest[row * params.chunks + i]); }
    return group_max_by_reads_u32(key, ids);
}
