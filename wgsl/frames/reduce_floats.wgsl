// Bindings for frames/reduce: one input, and floats between passes. The op brings `load(v: f32) -> f32`, for the numbers of the input, and
// `finish(acc: f32) -> f32`, for the result.
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn element(at: u32, index: u32, output: u32) -> f32 {
    let v = f32(x[at]);
    return select(load(v), v, params.parts != 0u);
}

fn store(at: u32, acc: f32) {
    if params.last == 0u { y[at] = acc; return; }
    let v = finish(acc);
    if params.add != 0u { y[at] += v; } else { y[at] = v; }
}
