// Reduces `count` numbers for each of `outputs`. An output's numbers are cut into `chunks` of lanes · TURNS, of which a workgroup takes one, for
// THREADS / lanes outputs; src/ops/reduce.rs says in what order. Where numbers of an output lie side by side, so do its lanes; else neighboring
// threads take neighboring outputs, so that either way neighboring threads read neighboring numbers.
//
// An op brings `Acc`, `identity() -> Acc`, `combine`, `element(at, index, output) -> Acc`, the number `index` of an output, which is the element `at`
// of the tensor, and `store(at, acc)`, where `at` counts chunks. One input and floats are in frames/reduce_floats.
struct Params {
    outputs: u32, count: u32, lanes: u32, chunks: u32,
    inner_outputs: u32, outer_stride: u32, inner_stride: u32, inner_count: u32, outer_step: u32, inner_step: u32,
    parts: u32, last: u32, add: u32,
    divisor: f32, mask: u32, flip: u32,
}
var<immediate> params: Params;

// Number `i` of an output whose numbers begin at `row`.
fn nth(row: u32, i: u32, output: u32) -> Acc {
    var at = row + i * params.inner_step;
    if params.inner_count != params.count {
        at = row + i / params.inner_count * params.outer_step + i % params.inner_count * params.inner_step;
    }
    return element(at, i, output);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn reduce(group: Group, ids: Ids) {
    let index = flat_group(group);
    let chunk = index % params.chunks;
    let together = THREADS / params.lanes;
    let columns = params.inner_step != 1u;
    let step = select(1u, together, columns);
    let lane = ids.local / step % params.lanes;
    let output = index / params.chunks * together + select(ids.local / params.lanes, ids.local % together, columns);
    var acc = identity();
    if output < params.outputs {
        let row = output / params.inner_outputs * params.outer_stride + output % params.inner_outputs * params.inner_stride;
        let first = chunk * params.lanes * TURNS;
        let end = min(first + params.lanes * TURNS, params.count);
        var i = first + lane;
        // Eight whose loads wait together.
        for (; i + 7u * params.lanes < end; i += 8u * params.lanes) {
            let a = nth(row, i, output);
            let b = nth(row, i + params.lanes, output);
            let c = nth(row, i + 2u * params.lanes, output);
            let d = nth(row, i + 3u * params.lanes, output);
            let e = nth(row, i + 4u * params.lanes, output);
            let f = nth(row, i + 5u * params.lanes, output);
            let g = nth(row, i + 6u * params.lanes, output);
            let h = nth(row, i + 7u * params.lanes, output);
            acc = combine(combine(combine(combine(combine(combine(combine(combine(acc, a), b), c), d), e), f), g), h);
        }
        for (; i < end; i += params.lanes) { acc = combine(acc, nth(row, i, output)); }
    }
    acc = over_lanes(acc, params.lanes, step, ids.local);
    if lane == 0u && output < params.outputs { store(output * params.chunks + chunk, acc); }
}
