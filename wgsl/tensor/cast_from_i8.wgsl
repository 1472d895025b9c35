// y[i] = x[i], of bytes. One thread per word of x.
struct Params { length: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn cast_from_i8(group: Group, ids: Ids) {
    let word = flat_thread(group, ids);
    let first = 4u * word;
    if first >= params.length { return; }
    let bytes = bitcast<i32>(x[word]);
    for (var i = 0u; i < 4u && first + i < params.length; i += 1u) { y[first + i] = Y(extractBits(bytes, 8u * i, 8u)); }
}
