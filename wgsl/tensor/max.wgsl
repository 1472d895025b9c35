// The largest of (x & mask) ^ flip, taken back: max, min (flip is the sign) or absmax (mask leaves the sign out). NaN is above all. Numbers are their keys
// (shared/order) until they are stored.
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

alias Acc = u32;
fn identity() -> u32 { return 0u; }
fn combine(a: u32, b: u32) -> u32 { return max(a, b); }

fn element(at: u32, index: u32, output: u32) -> u32 {
    let bits = bitcast<u32>(f32(x[at]));
    return to_key(bitcast<f32>(select((bits & params.mask) ^ params.flip, bits, params.parts != 0u)));
}

fn store(at: u32, acc: u32) {
    let v = from_key(acc);
    if params.last == 0u { y[at] = v; return; }
    let taken_back = bitcast<f32>(bitcast<u32>(v) ^ params.flip);
    if params.add != 0u { y[at] += taken_back; } else { y[at] = taken_back; }
}
