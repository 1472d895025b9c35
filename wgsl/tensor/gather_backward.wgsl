// dx[r] = Σ dy[i] over all i with ids[i] = r, in the order of i: so the sum is the same every time, which atomic additions would not be. A workgroup
// per row of dx, a thread per column; it looks at as many ids at once as it has threads.
struct Params { count: u32, rows: u32, columns: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> dy: array<X>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> dx: array<X>;

var<workgroup> hits: array<u32, THREADS>;
// The same, a bit each: most chunks have none.
var<workgroup> masks: array<u32, THREADS / 32u>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gather_backward(group: Group, thread: Ids) {
    let row = flat_group(group);
    if row >= params.rows { return; }
    for (var first_column = 0u; first_column < params.columns; first_column += THREADS) {
        let column = first_column + thread.local;
        var sum = 0.0;
        for (var first = 0u; first < params.count; first += THREADS) {
            let i = first + thread.local;
            hits[thread.local] = u32(i < params.count && ids[min(i, params.count - 1u)] == row);
            workgroupBarrier();
            if thread.local < THREADS / 32u {
                var mask = 0u;
                for (var bit = 0u; bit < 32u; bit += 1u) { mask |= hits[32u * thread.local + bit] << bit; }
                masks[thread.local] = mask;
            }
            workgroupBarrier();
            for (var word = 0u; word < THREADS / 32u && column < params.columns; word += 1u) {
                for (var mask = masks[word]; mask != 0u; mask &= mask - 1u) {
                    sum += f32(dy[(first + 32u * word + firstTrailingBit(mask)) * params.columns + column]);
                }
            }
            workgroupBarrier();
        }
        if column < params.columns { dx[row * params.columns + column] = X(sum); }
    }
}
