// C := (I - V·T·Vᵀ)·C, or with Tᵀ, for the panel of householder_panel.wgsl at column `first`, on columns from `column0` of C [m, columns].
// Rows above the panel's first do not change. A workgroup per BLOCK columns, `tiles` of them per matrix.
struct Params { groups: u32, m: u32, k: u32, first: u32, panels: u32, columns: u32, column0: u32, tiles: u32, transposed: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> v: array<f32>;
@group(0) @binding(1) var<storage, read> t: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;

const PITCH: u32 = BLOCK + 1u;
const LANES: u32 = THREADS / BLOCK;
const SHARE: u32 = BLOCK / LANES;
var<workgroup> of_v: array<f32, BLOCK * PITCH>;
// A tile of C, then Vᵀ·C.
var<workgroup> of_c: array<f32, BLOCK * BLOCK>;

fn load_v(base: u32, row0: u32, local: u32) {
    for (var i = local; i < BLOCK * BLOCK; i += THREADS) {
        let row = row0 + i / BLOCK;
        let column = params.first + i % BLOCK;
        var value = 0.0;
        if row < params.m && column < params.k { value = v[base + row * params.k + column]; }
        of_v[i / BLOCK * PITCH + i % BLOCK] = value;
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn householder_apply(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let matrix = index / params.tiles;
    let v_base = matrix * params.m * params.k;
    let c_base = matrix * params.m * params.columns;
    let edge = min(BLOCK, params.k);
    let t_base = (matrix * params.panels + params.first / BLOCK) * edge * edge;
    // A thread has one column, and every LANES-th row of a tile.
    let own = ids.local % BLOCK;
    let lane = ids.local / BLOCK;
    let column = params.column0 + index % params.tiles * BLOCK + own;

    // W = Vᵀ·C
    var w = array<f32, SHARE>();
    for (var row0 = params.first; row0 < params.m; row0 += BLOCK) {
        load_v(v_base, row0, ids.local);
        for (var r = lane; r < BLOCK; r += LANES) {
            var value = 0.0;
            if row0 + r < params.m && column < params.columns { value = c[c_base + (row0 + r) * params.columns + column]; }
            of_c[r * BLOCK + own] = value;
        }
        workgroupBarrier();
        for (var r = 0u; r < BLOCK; r += 1u) {
            for (var s = 0u; s < SHARE; s += 1u) { w[s] += of_v[r * PITCH + lane + s * LANES] * of_c[r * BLOCK + own]; }
        }
        workgroupBarrier();
    }
    // W := T·W
    for (var s = 0u; s < SHARE; s += 1u) { of_c[(lane + s * LANES) * BLOCK + own] = w[s]; }
    workgroupBarrier();
    w = array<f32, SHARE>();
    for (var l = 0u; l < edge; l += 1u) {
        for (var s = 0u; s < SHARE; s += 1u) {
            let i = lane + s * LANES;
            if i < edge { w[s] += t[t_base + select(i * edge + l, l * edge + i, params.transposed != 0u)] * of_c[l * BLOCK + own]; }
        }
    }
    workgroupBarrier();
    for (var s = 0u; s < SHARE; s += 1u) { of_c[(lane + s * LANES) * BLOCK + own] = w[s]; }
    // C := C - V·W
    for (var row0 = params.first; row0 < params.m; row0 += BLOCK) {
        workgroupBarrier();
        load_v(v_base, row0, ids.local);
        workgroupBarrier();
        for (var r = lane; r < BLOCK; r += LANES) {
            if row0 + r < params.m && column < params.columns {
                var sum = 0.0;
                for (var l = 0u; l < BLOCK; l += 1u) { sum += of_v[r * PITCH + l] * of_c[l * BLOCK + own]; }
                c[c_base + (row0 + r) * params.columns + column] -= sum;
            }
        }
    }
}
