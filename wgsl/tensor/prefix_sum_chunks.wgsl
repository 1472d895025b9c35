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
    let first = index % params.chunks * THREADS * TURNS;
    var sum = T(0);
    for (var i = first + ids.local; i < min(first + THREADS * TURNS, params.columns); i += THREADS) { sum += x[row * params.columns + i]; }
    tree[ids.local] = sum;
    workgroupBarrier();
    for (var stride = THREADS / 2u; stride > 0u; stride /= 2u) {
        if ids.local < stride { tree[ids.local] += tree[ids.local + stride]; }
        workgroupBarrier();
    }
    if ids.local == 0u { y[index] = tree[0]; }
}
