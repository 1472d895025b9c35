// y[i] = (code - zero point) / scale of bytes, on top of y if `add` is not 0. `per_scale` numbers, one after another, have a scale, and a zero point if
// `zeros` is not 0. One thread per word of codes.
struct Params { length: u32, per_scale: u32, zeros: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read> zero_points: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn dequantize_int8(group: Group, ids: Ids) {
    let word = flat_thread(group, ids);
    let first = 4u * word;
    if first >= params.length { return; }
    let bytes = bitcast<i32>(codes[word]);
    for (var i = 0u; i < 4u && first + i < params.length; i += 1u) {
        let at = first + i;
        let place = at / params.per_scale;
        var code = extractBits(bytes, 8u * i, 8u);
        if params.zeros != 0u { code -= zero_points[place]; }
        let v = exact_quotient(f32(code), scales[place]);
        if params.add != 0u { y[at] = Y(f32(y[at]) + v); } else { y[at] = Y(v); }
    }
}
