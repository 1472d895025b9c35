// Norms in descending order, without their scale, and whose they are: order[i] is the vector of the i-th largest. One thread per norm, q of them per
// matrix. They are compared by their bits, so that there is an order even of NaNs.
struct Params { length: u32, q: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> norms: array<f32>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> s: array<f32>;
@group(0) @binding(3) var<storage, read_write> order: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_sort(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let matrix = index / params.q;
    let first = matrix * params.q;
    let own = bitcast<u32>(norms[index]);
    var before = 0u;
    for (var i = first; i < first + params.q; i += 1u) {
        let other = bitcast<u32>(norms[i]);
        before += u32(other > own || (other == own && i < index));
    }
    s[first + before] = norms[index] / scale[matrix];
    order[first + before] = index - first;
}
