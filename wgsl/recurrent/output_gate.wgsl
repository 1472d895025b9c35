// x[token, i] · σ(gate), in place; gates are the last `columns` numbers of rows of `stride`. One thread per number.
struct Params { length: u32, columns: u32, stride: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> gates: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn output_gate(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let token = index / params.columns;
    let gate = gates[(token + 1u) * params.stride - params.columns + index % params.columns];
    x[index] *= sigmoid(gate);
}
