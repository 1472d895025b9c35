// y[i] = x[i] in a byte: without what is after the point, from -128 to 127. One thread per word of y; bytes after its end stay.
struct Params { length: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn cast_to_i8(group: Group, ids: Ids) {
    let word = flat_thread(group, ids);
    let first = 4u * word;
    if first >= params.length { return; }
    var bytes = 0u;
    if first + 4u > params.length { bytes = y[word]; }
    for (var i = 0u; i < 4u && first + i < params.length; i += 1u) {
        let v = f32(x[first + i]);
        let within = i32(select(clamp(v, -128.0, 127.0), 0.0, is_nan(v)));
        bytes = insertBits(bytes, bitcast<u32>(within), 8u * i, 8u);
    }
    y[word] = bytes;
}
