// y[r, i] = Σ x[r, j] over j <= i, or j < i where `exclusive` is not 0. A workgroup takes a chunk of THREADS · TURNS numbers; `before` [rows, chunks]
// are the sums of what is before each, and is not read for the first. Each thread has TURNS neighbouring numbers.
struct Params { rows: u32, columns: u32, chunks: u32, exclusive: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> before: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;

var<workgroup> sums: array<T, THREADS>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn prefix_sum(group: Group, ids: Ids) {
    let index = flat_group(group);
    let row = index / params.chunks;
    if row >= params.rows { return; }
    let chunk = index % params.chunks;
    let first = min((chunk * THREADS + ids.local) * TURNS, params.columns);
    let end = min(first + TURNS, params.columns);
    var sum = T(0);
    for (var i = first; i < end; i += 1u) { sum += x[row * params.columns + i]; }
    sums[ids.local] = sum;
    workgroupBarrier();
    // Each step doubles the threads whose numbers a sum has.
    for (var stride = 1u; stride < THREADS; stride *= 2u) {
        var lower = T(0);
        if ids.local >= stride { lower = sums[ids.local - stride]; }
        workgroupBarrier();
        sums[ids.local] += lower;
        workgroupBarrier();
    }
    sum = T(0);
    if chunk > 0u { sum = before[index]; }
    if ids.local > 0u { sum += sums[ids.local - 1u]; }
    for (var i = first; i < end; i += 1u) {
        let v = x[row * params.columns + i];
        y[row * params.columns + i] = select(sum + v, sum, params.exclusive != 0u);
        sum += v;
    }
}
