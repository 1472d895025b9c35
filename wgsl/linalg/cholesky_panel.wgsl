// BLOCK columns of L from `first` on: the factor of their diagonal block, and the rows below it times the inverse of its transpose. A workgroup has
// BLOCK of these rows, and factors the block itself: cheaper than another dispatch. The first of a matrix's `chunks` workgroups writes the block.
// status: the 1-based column whose pivot is not positive, or NOT_FINITE.
struct Params { groups: u32, n: u32, first: u32, chunks: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> diagonal: array<f32>;
@group(0) @binding(1) var<storage, read_write> l: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<u32>;

const PITCH: u32 = BLOCK + 1u;
const ROWS: u32 = 2u * BLOCK;
// The block, and this workgroup's rows below it.
var<workgroup> panel: array<f32, ROWS * PITCH>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn cholesky_panel(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let n = params.n;
    let matrix = index / params.chunks;
    let chunk = index % params.chunks;
    let base = matrix * n * n;
    let edge = min(BLOCK, n);
    let row0 = params.first + (chunk + 1u) * BLOCK;

    for (var i = ids.local; i < ROWS * BLOCK; i += THREADS) {
        let r = i / BLOCK;
        let c = i % BLOCK;
        var v = 0.0;
        if max(r, c) < edge {
            v = diagonal[(matrix * edge + r) * edge + c];
        } else if r < BLOCK {
            v = select(0.0, 1.0, r == c);
        } else if row0 + r - BLOCK < n {
            // Where there are such rows, all columns of the block are.
            v = l[base + (row0 + r - BLOCK) * n + params.first + c];
        }
        panel[r * PITCH + c] = v;
    }
    workgroupBarrier();

    let r = ids.local % ROWS;
    var wrong = 0u;
    for (var j = 0u; j < BLOCK; j += 1u) {
        let pivot = panel[j * PITCH + j];
        let finite = is_finite(pivot);
        if wrong == 0u && !(finite && pivot > 0.0) { wrong = select(NOT_FINITE, params.first + j + 1u, finite); }
        let root = sqrt(pivot);
        let own = panel[r * PITCH + j] / root;
        workgroupBarrier();
        if ids.local < ROWS { panel[r * PITCH + j] = select(own, root, r == j); }
        workgroupBarrier();
        for (var c = j + 1u + ids.local / ROWS; c < BLOCK; c += THREADS / ROWS) {
            if r >= c { panel[r * PITCH + c] -= own * panel[c * PITCH + j]; }
        }
        workgroupBarrier();
    }

    for (var i = ids.local; i < ROWS * BLOCK; i += THREADS) {
        let r = i / BLOCK;
        let c = i % BLOCK;
        let row = select(row0 + r - BLOCK, params.first + r, r < BLOCK);
        if row < n && params.first + c < n && (r >= BLOCK || chunk == 0u) { l[base + row * n + params.first + c] = panel[r * PITCH + c]; }
    }
    if chunk == 0u && ids.local == 0u && (params.first == 0u || status[matrix] == 0u) { status[matrix] = wrong; }
}
