// parts[first + i] = Σ x² of the i-th `chunk` numbers of x, by a workgroup, in the order of frames/reduce: so the parts of several tensors come to
// lie in one.
struct Params { length: u32, first: u32, chunk: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> parts: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sum_squares(group: Group, ids: Ids) {
    let index = flat_group(group);
    let begin = index * params.chunk;
    if begin >= params.length { return; }
    let end = min(begin + params.chunk, params.length);
    var sum = identity();
    for (var i = begin + ids.local; i < end; i += THREADS) {
        let v = f32(x[i]);
        sum = combine(sum, v * v);
    }
    sum = over_lanes(sum, THREADS, 1u, ids.local);
    if ids.local == 0u { parts[params.first + index] = sum; }
}
