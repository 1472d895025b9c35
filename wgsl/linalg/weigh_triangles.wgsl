// y[i, j] = x[i, j] times a weight, for every matrix of a batch: one below the diagonal, one on it, one above it. A weight of 0 makes 0 of anything. One
// thread per element of x [.., n, n].
struct Params { length: u32, n: u32, below: f32, diagonal: f32, above: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn weigh_triangles(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let row = index / params.n % params.n;
    let column = index % params.n;
    var weight = params.diagonal;
    if row > column { weight = params.below; }
    if row < column { weight = params.above; }
    var v = 0.0;
    if weight != 0.0 { v = x[index] * weight; }
    y[index] = v;
}
