// The norm of each row's first p numbers, of p + q. One workgroup per row.
struct Params { groups: u32, p: u32, q: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> rows: array<f32>;
@group(0) @binding(1) var<storage, read_write> norms: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_norms(group: Group, ids: Ids) {
    let row = flat_group(group);
    if row >= params.groups { return; }
    let base = row * (params.p + params.q);
    var top = 0u;
    for (var i = ids.local; i < params.p; i += THREADS) { top = max(top, magnitude(rows[base + i])); }
    top = tree_max(top, ids.local);
    var squares = 0.0;
    for (var i = ids.local; i < params.p; i += THREADS) {
        let v = rows[base + i] * down_scale(top);
        squares += v * v;
    }
    squares = fixed_tree(squares, ids.local);
    if ids.local == 0u { norms[row] = sqrt(squares) * up_scale(top); }
}
