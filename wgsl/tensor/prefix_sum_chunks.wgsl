// The sum of every chunk of TILE_X = THREADS · TURNS numbers of a row: x [rows, columns], y [rows, chunks]. One workgroup per chunk.
struct Params { rows: u32, columns: u32, chunks: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;

var<workgroup> tree: array<T, THREADS>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn prefix_sum_chunks(group: Group, ids: Ids) {
    let index = flat_group(group);
    let row = index / params.chunks;
    if row >= params.rows { return; }
    let start = index % params.chunks * THREADS * TURNS;
    let first = row * params.columns + start;
    let left = params.columns - start;
    var v = array<T, TURNS>();
    for (var t = 0u; t < TURNS; t += 1u) { v[t] = x[first + min(ids.local + t * THREADS, left - 1u)]; }
    var sum = T(0);
    for (var t = 0u; t < TURNS; t += 1u) { sum += select(T(0), v[t], ids.local + t * THREADS < left); }
    tree[ids.local] = sum;
    workgroupBarrier();
    for (var stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if ids.local < stride { tree[ids.local] += tree[ids.local + stride]; }
        workgroupBarrier();
    }
    if ids.local == 0u { y[index] = tree[0]; }
}
