// Rows of x [tokens, columns] in fixed point: multiples of a power of two of the row, `units`, of at most 2^22. y has each as three signed bytes,
// 2^16·high + 2^8·middle + low, [tokens, 3, words] of four bytes, low ones first, and zeros after the columns. A row with a number that is not finite has
// a NaN for a unit, and zeros. A workgroup makes a row.
struct Params { tokens: u32, columns: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<storage, read_write> units: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_fixed_point(group: Group, ids: Ids) {
    let token = flat_group(group);
    // The last row once more where there is none, so that all threads meet at barriers.
    let row = min(token, params.tokens - 1u);
    let start = row * params.columns;
    // The bits of floats >= 0 are ordered as the floats are.
    var largest = 0u;
    for (var i = ids.local; i < params.columns; i += THREADS) { largest = max(largest, bitcast<u32>(x[start + i]) & 0x7fffffffu); }
    largest = group_max_by_reads_u32(largest, ids);
    if token >= params.tokens { return; }
    let finite = largest < 0x7f800000u;
    // Numbers so small that their unit has no inverse, or that a device takes for 0, are 0.
    let exponent = max(largest >> 23u, 32u);
    let inverse = bitcast<f32>((275u - exponent) << 23u);
    if ids.local == 0u { units[row] = bitcast<f32>(select(0x7fc00000u, (exponent - 21u) << 23u, finite)); }
    let planes = row * 3u * params.words;
    for (var word = ids.local; word < params.words; word += THREADS) {
        var v = vec4<f32>();
        for (var i = 0u; i < 4u; i += 1u) {
            let column = 4u * word + i;
            if finite && column < params.columns { v[i] = x[start + column]; }
        }
        // Digits of -128 to 127 are those of 0 to 255 of a number that is 128 more in each.
        let digits = bitcast<vec4<u32>>(vec4<i32>(round(v * inverse)) + vec4<i32>(0x808080));
        y[planes + word] = pack4xU8(digits) ^ 0x80808080u;
        y[planes + params.words + word] = pack4xU8(digits >> vec4<u32>(8u)) ^ 0x80808080u;
        y[planes + 2u * params.words + word] = pack4xU8(digits >> vec4<u32>(16u)) ^ 0x80808080u;
    }
}
