// y[i, c] = 1 for c = ids[i], else 0. One thread per element.
struct Params { length: u32, classes: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn one_hot(group: Group, thread: Ids) {
    let index = flat_thread(group, thread);
    if index >= params.length { return; }
    let i = index / params.classes;
    y[index] = Y(select(0.0, 1.0, ids[i] == index - i * params.classes));
}
