// A step of a blocked Cholesky factorization: from what is left of A [n, n] in rows and columns `first`.., it takes the products of the BLOCK columns
// of L before `first`. Where there are none yet, it copies A's lower triangle. L is the place of what is left; its first block goes to `diagonal`
// [.., edge, edge], with ones on the diagonal beyond n, so that all workgroups of cholesky_panel.wgsl can read it while one of them overwrites it.
// A workgroup per BLOCK × BLOCK elements, and per matrix as many as a square of `tiles` has. It starts with zeros above the diagonal.
struct Params { groups: u32, n: u32, first: u32, tiles: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> l: array<f32>;
@group(0) @binding(2) var<storage, read_write> diagonal: array<f32>;

const PITCH: u32 = BLOCK + 1u;
// Rows of L before `first`: those of the tile's rows, and those of its columns.
var<workgroup> left: array<f32, BLOCK * PITCH>;
var<workgroup> right: array<f32, BLOCK * PITCH>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn cholesky_update(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let n = params.n;
    let matrix = index / (params.tiles * params.tiles);
    let tile = index % (params.tiles * params.tiles);
    let row0 = params.first + tile / params.tiles * BLOCK;
    let column0 = params.first + tile % params.tiles * BLOCK;
    if params.first > 0u && row0 < column0 { return; }
    let base = matrix * n * n;
    let edge = min(BLOCK, n);

    for (var i = ids.local; i < BLOCK * BLOCK; i += THREADS) {
        let r = i / BLOCK;
        let c = i % BLOCK;
        var v = vec2<f32>();
        if params.first > 0u {
            let column = params.first - BLOCK + c;
            if row0 + r < n { v.x = l[base + (row0 + r) * n + column]; }
            if column0 + r < n { v.y = l[base + (column0 + r) * n + column]; }
        }
        left[r * PITCH + c] = v.x;
        right[r * PITCH + c] = v.y;
    }
    workgroupBarrier();

    for (var i = ids.local; i < BLOCK * BLOCK; i += THREADS) {
        let r = i / BLOCK;
        let c = i % BLOCK;
        let row = row0 + r;
        let column = column0 + c;
        let at = base + row * n + column;
        var rest = select(0.0, 1.0, row == column);
        if row < n && column <= row {
            if params.first > 0u { rest = l[at]; } else { rest = a[at]; }
            for (var k = 0u; k < BLOCK; k += 1u) { rest -= left[r * PITCH + k] * right[c * PITCH + k]; }
        }
        if row < n && column < n { l[at] = rest; }
        if tile == 0u && max(r, c) < edge { diagonal[(matrix * edge + r) * edge + c] = rest; }
    }
}
