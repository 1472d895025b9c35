// Numbers `offset`.. of the rows of p + q, sorted: number j of the i-th goes to y[i·y_i + j·y_j]. One thread per number, q × `count` of them per matrix.
struct Params { length: u32, width: u32, q: u32, offset: u32, count: u32, y_i: u32, y_j: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> rows: array<f32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_gather(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let matrix = index / (params.q * params.count);
    let i = index / params.count % params.q;
    let j = index % params.count;
    let row = matrix * params.q + order[matrix * params.q + i];
    y[matrix * params.q * params.count + i * params.y_i + j * params.y_j] = rows[row * params.width + params.offset + j];
}
