// codes[i] = clamp(round(x[i]·scale) + zero point, -128, 127), of one scale, and of one zero point if `zeros` is not 0. NaN is taken for 0, and so is all
// where the scale is not finite. One thread per word of codes; bytes after its end stay.
struct Params { length: u32, zeros: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read> zero_point: array<i32>;
@group(0) @binding(3) var<storage, read_write> codes: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_by_tensor(group: Group, ids: Ids) {
    let word = flat_thread(group, ids);
    let first = 4u * word;
    if first >= params.length { return; }
    var zero = 0.0;
    if params.zeros != 0u { zero = f32(zero_point[0]); }
    var bytes = 0u;
    if first + 4u > params.length { bytes = codes[word]; }
    for (var i = 0u; i < 4u && first + i < params.length; i += 1u) {
        let v = f32(x[first + i]);
        let steps = select(0.0, round(v * scale[0]), is_finite(scale[0]) && !is_nan(v));
        bytes = insertBits(bytes, bitcast<u32>(i32(clamp(steps + zero, -128.0, 127.0))), 8u * i, 8u);
    }
    codes[word] = bytes;
}
