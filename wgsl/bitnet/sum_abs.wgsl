// sums[m, c] = Σ|w| over the c-th chunk of THREADS² numbers of the m-th matrix, of `length` numbers. One workgroup per chunk: each thread adds every THREADS-th number, then all threads add in
// a tree. The order is fixed, so results are bit-identical on every device.
struct Params { length: u32, chunks: u32, matrices: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sum_abs(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.matrices * params.chunks { return; }
    let start = index / params.chunks * params.length;
    let first = start + index % params.chunks * THREADS * THREADS;
    let end = min(first + THREADS * THREADS, start + params.length);
    var sum = 0.0;
    for (var i = first + ids.local; i < end; i += THREADS) { sum += abs(f32(w[i])); }
    sum = fixed_tree(sum, ids.local);
    if ids.local == 0u { sums[index] = sum; }
}
