// frames/reduce, a chunk by one thread: with shared/row_alone, in the same order.
struct Params {
    outputs: u32, count: u32, lanes: u32, chunks: u32,
    inner_outputs: u32, outer_stride: u32, inner_stride: u32, inner_count: u32, outer_step: u32, inner_step: u32,
    parts: u32, last: u32, add: u32,
    divisor: f32, mask: u32, flip: u32,
}
var<immediate> params: Params;
var<private> row_start: u32;

fn number(output: u32, i: u32) -> Acc {
    var at = row_start + i * params.inner_step;
    if params.inner_count != params.count {
        at = row_start + i / params.inner_count * params.outer_step + i % params.inner_count * params.inner_step;
    }
    return element(at, i, output);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn reduce_alone(group: Group, ids: Ids) {
    let at = flat_thread(group, ids);
    let output = at / params.chunks;
    if output >= params.outputs { return; }
    row_start = output / params.inner_outputs * params.outer_stride + output % params.inner_outputs * params.inner_stride;
    let chunk = params.lanes * TURNS;
    let begin = at % params.chunks * chunk;
    store(at, over_row(output, begin, min(begin + chunk, params.count), params.lanes, ids));
}
