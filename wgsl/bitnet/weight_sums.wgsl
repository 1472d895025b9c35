// sums[c] = (Σ w, Σ|w|) over the c-th chunk of THREADS² numbers. One workgroup per chunk: each thread adds every THREADS-th number, then all threads
// add in a tree. The order is fixed, so every device gets the same bits.
struct Params { length: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn weight_sums(group: Group, ids: Ids) {
    let chunk = flat_group(group);
    let first = chunk * THREADS * THREADS;
    if first >= params.length { return; }
    var sum = 0.0;
    var sum_abs = 0.0;
    for (var i = first + ids.local; i < min(first + THREADS * THREADS, params.length); i += THREADS) {
        let v = f32(w[i]);
        sum += v;
        sum_abs += abs(v);
    }
    sum = fixed_tree(sum, ids.local);
    sum_abs = fixed_tree(sum_abs, ids.local);
    if ids.local == 0u {
        sums[2u * chunk] = sum;
        sums[2u * chunk + 1u] = sum_abs;
    }
}
