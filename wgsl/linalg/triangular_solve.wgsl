// x := the solution of A·x = b, or of Aᵀ·x = b, for triangular A [n, n], where x [n, columns] holds b: by substitution, a block of BLOCK rows after
// the other. It is written for lower triangles; an upper one becomes lower where rows and columns are counted from the end (`backward`), and so does
// the transpose of a lower one. A workgroup per BLOCK columns of x, `tiles` of them per matrix.
struct Params { groups: u32, n: u32, columns: u32, tiles: u32, a_matrix: u32, backward: u32, transposed: u32, unit: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

const PITCH: u32 = BLOCK + 1u;
const LANES: u32 = THREADS / BLOCK;
const SHARE: u32 = BLOCK / LANES;
var<workgroup> of_a: array<f32, BLOCK * PITCH>;
var<workgroup> of_x: array<f32, BLOCK * PITCH>;

// A row or column, as counted by substitution.
fn place(i: u32) -> u32 { return select(i, params.n - 1u - i, params.backward != 0u); }

// Loads a block of A. Neighboring threads read neighboring elements.
fn load_a(base: u32, row0: u32, column0: u32, local: u32) {
    for (var i = local; i < BLOCK * BLOCK; i += THREADS) {
        var r = i / BLOCK;
        var c = i % BLOCK;
        if params.transposed != 0u { r = i % BLOCK; c = i / BLOCK; }
        var v = 0.0;
        if row0 + r < params.n && column0 + c < params.n {
            let row = place(row0 + r);
            let column = place(column0 + c);
            v = a[base + select(row * params.n + column, column * params.n + row, params.transposed != 0u)];
        }
        of_a[r * PITCH + c] = v;
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn triangular_solve(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let matrix = index / params.tiles;
    let a_base = matrix * params.a_matrix;
    let x_base = matrix * params.n * params.columns;
    // A thread has one column, and every LANES-th row of a block.
    let c = ids.local % BLOCK;
    let lane = ids.local / BLOCK;
    let column = index % params.tiles * BLOCK + c;

    for (var row0 = 0u; row0 < params.n; row0 += BLOCK) {
        var rest = array<f32, SHARE>();
        for (var s = 0u; s < SHARE; s += 1u) {
            let row = row0 + lane + s * LANES;
            if row < params.n && column < params.columns { rest[s] = x[x_base + place(row) * params.columns + column]; }
        }
        // Less what the rows before it contribute.
        for (var known = 0u; known < row0; known += BLOCK) {
            load_a(a_base, row0, known, ids.local);
            for (var r = lane; r < BLOCK; r += LANES) {
                var v = 0.0;
                if column < params.columns { v = x[x_base + place(known + r) * params.columns + column]; }
                of_x[r * PITCH + c] = v;
            }
            workgroupBarrier();
            for (var k = 0u; k < BLOCK; k += 1u) {
                for (var s = 0u; s < SHARE; s += 1u) { rest[s] -= of_a[(lane + s * LANES) * PITCH + k] * of_x[k * PITCH + c]; }
            }
            workgroupBarrier();
        }
        load_a(a_base, row0, row0, ids.local);
        for (var s = 0u; s < SHARE; s += 1u) { of_x[(lane + s * LANES) * PITCH + c] = rest[s]; }
        workgroupBarrier();
        // Within the block a column is one thread's.
        if lane == 0u && column < params.columns {
            for (var r = 0u; r < min(BLOCK, params.n - row0); r += 1u) {
                var v = of_x[r * PITCH + c];
                for (var k = 0u; k < r; k += 1u) { v -= of_a[r * PITCH + k] * of_x[k * PITCH + c]; }
                if params.unit == 0u { v /= of_a[r * PITCH + r]; }
                of_x[r * PITCH + c] = v;
                x[x_base + place(row0 + r) * params.columns + column] = v;
            }
        }
        storageBarrier();
        workgroupBarrier();
    }
}
