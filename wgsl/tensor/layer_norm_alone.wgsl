// tensor/layer_norm, a row by one thread: with shared/row_alone, in the same order.
struct Params { rows: u32, columns: u32, lanes: u32, add: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<X>;

// First numbers are added, then squares of what they are less the mean.
var<private> mean: f32;
var<private> squared: bool;

fn number(first: u32, i: u32) -> f32 {
    let v = f32(x[first + i]) - mean;
    return select(v, v * v, squared);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn layer_norm_alone(group: Group, ids: Ids) {
    let row = flat_thread(group, ids);
    if row >= params.rows { return; }
    let first = row * params.columns;
    let count = f32(params.columns);
    mean = over_row(first, 0u, params.columns, params.lanes, ids) / count;
    squared = true;
    let inverse = 1.0 / sqrt(over_row(first, 0u, params.columns, params.lanes, ids) / count + params.eps);
    for (var i = 0u; i < params.columns; i += 1u) {
        let at = first + i;
        let v = (f32(x[at]) - mean) * inverse * weight[i] + bias[i];
        if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
    }
}
