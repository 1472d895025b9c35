// B [p, q]: the columns of a tall matrix in the order given, scaled. Its element (i, j) is a[i·a_row + j·a_column]. One thread per element.
struct Params { length: u32, p: u32, q: u32, a_row: u32, a_column: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read> scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> b: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_permute(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let matrix = index / (params.p * params.q);
    let i = index / params.q % params.p;
    let j = order[matrix * params.q + index % params.q];
    b[index] = a[matrix * params.p * params.q + i * params.a_row + j * params.a_column] * scale[matrix];
}
