// y[r, i] = Σ x[r, j] over j <= i, or j < i where `exclusive` is not 0. A workgroup takes a chunk of THREADS · TURNS numbers of a row; `before` [rows, chunks]
// are the sums of what is before each, and is not read for the first. Of rows that are one chunk it takes as many as there is room for, each by `lanes`
// threads. Each thread has TURNS neighboring numbers; they come and go through workgroup memory, so that neighboring threads read and write side by
// side.
struct Params { rows: u32, columns: u32, chunks: u32, lanes: u32, exclusive: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> before: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;

// A word more for each thread, so that they do not wait for one bank.
var<workgroup> numbers: array<T, THREADS * (TURNS + 1u)>;
// Steps take turns in two halves, so that one barrier a step is enough.
var<workgroup> sums: array<T, 2u * THREADS>;

// Where the i-th number of a workgroup is, of rows of which it takes `width` columns.
fn place(i: u32, width: u32) -> u32 {
    let row = i / width;
    let column = i - row * width;
    return row * params.lanes * (TURNS + 1u) + column + column / TURNS;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn prefix_sum(group: Group, ids: Ids) {
    let index = flat_group(group);
    let together = THREADS / params.lanes;
    let row = index / params.chunks * together;
    if row >= params.rows || params.columns == 0u { return; }
    let chunk = index % params.chunks;
    let start = chunk * THREADS * TURNS;
    let width = min(params.columns - start, THREADS * TURNS);
    let rows = min(params.rows - row, together);
    let first = row * params.columns + start;
    let count = rows * width;
    var v = array<T, TURNS>();
    for (var t = 0u; t < TURNS; t += 1u) { v[t] = x[first + min(ids.local + t * THREADS, count - 1u)]; }
    for (var t = 0u; t < TURNS; t += 1u) {
        let i = ids.local + t * THREADS;
        if i < count { numbers[place(i, width)] = v[t]; }
    }
    workgroupBarrier();

    let lane = ids.local % params.lanes;
    let mine = ids.local * (TURNS + 1u);
    let left = select(0u, width - min(width, lane * TURNS), ids.local / params.lanes < rows);
    var sum = T(0);
    for (var t = 0u; t < TURNS; t += 1u) {
        v[t] = T(0);
        if t < left { v[t] = numbers[mine + t]; }
        sum += v[t];
    }
    sums[ids.local] = sum;
    workgroupBarrier();
    // Each step doubles the threads whose numbers a sum has.
    var half = 0u;
    for (var stride = 1u; stride < params.lanes; stride *= 2u) {
        var total = sums[half + ids.local];
        if lane >= stride { total += sums[half + ids.local - stride]; }
        half = THREADS - half;
        sums[half + ids.local] = total;
        workgroupBarrier();
    }
    sum = T(0);
    if chunk > 0u { sum = before[index]; }
    if lane > 0u { sum += sums[half + ids.local - 1u]; }
    for (var t = 0u; t < TURNS; t += 1u) {
        numbers[mine + t] = select(sum + v[t], sum, params.exclusive != 0u);
        sum += v[t];
    }
    workgroupBarrier();
    for (var t = 0u; t < TURNS; t += 1u) {
        let i = ids.local + t * THREADS;
        if i < count { y[first + i] = numbers[place(i, width)]; }
    }
}
