// The norms of q vectors per matrix, of `count` numbers each: number j of vector i is x[i·x_i + j·x_j]. One workgroup per vector.
struct Params { groups: u32, q: u32, count: u32, x_matrix: u32, x_i: u32, x_j: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> norms: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_norms(group: Group, ids: Ids) {
    let vector = flat_group(group);
    if vector >= params.groups { return; }
    let base = vector / params.q * params.x_matrix + vector % params.q * params.x_i;
    var top = 0u;
    for (var j = ids.local; j < params.count; j += THREADS) { top = max(top, magnitude(x[base + j * params.x_j])); }
    top = tree_max(top, ids.local);
    var squares = 0.0;
    for (var j = ids.local; j < params.count; j += THREADS) {
        let v = x[base + j * params.x_j] * down_scale(top);
        squares += v * v;
    }
    squares = fixed_tree(squares, ids.local);
    if ids.local == 0u { norms[vector] = sqrt(squares) * up_scale(top); }
}
