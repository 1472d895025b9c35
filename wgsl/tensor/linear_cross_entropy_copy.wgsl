// y[y_first + i] = x[x_first + i], in the type of y, or added to it if `add` is not 0. One thread per element.
struct Params { length: u32, x_first: u32, y_first: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn linear_cross_entropy_copy(group: Group, ids: Ids) {
    let i = flat_thread(group, ids);
    if i >= params.length { return; }
    let v = f32(x[params.x_first + i]);
    let at = params.y_first + i;
    if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
}
