// Codes of the rows of x [rows, columns] in 4 bits: clamp(round(x·a), -8, 7) with a = 7 / max(max|x|, 1e-5), eight a word, the first in the lowest bits;
// rows begin with a word, and end with zeros. A row that is not finite gets codes 0 and scale NaN. A row is shared by `lanes` threads.
struct Params { rows: u32, columns: u32, lanes: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_activations_4bit(group: Group, ids: Ids) {
    let row = flat_group(group) * (THREADS / params.lanes) + ids.local / params.lanes;
    let lane = ids.local % params.lanes;
    let first = row * params.columns;
    // Threads beyond the last row wait for the others.
    let columns = select(0u, params.columns, row < params.rows);
    var bits = identity();
    for (var i = lane; i < columns; i += params.lanes) { bits = combine(bits, load(f32(x[first + i]))); }
    bits = over_lanes(bits, params.lanes, 1u, ids.local);
    if row >= params.rows { return; }
    let finite = bits < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 7.0);
    if lane == 0u { scales[row] = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(scale), finite)); }
    for (var word = lane; word < params.words; word += params.lanes) {
        var packed = 0u;
        for (var j = 0u; finite && j < 8u && 8u * word + j < columns; j += 1u) {
            let code = i32(clamp(round(f32(x[first + 8u * word + j]) * scale), -8.0, 7.0));
            packed = insertBits(packed, bitcast<u32>(code), 4u * j, 4u);
        }
        codes[row * params.words + word] = packed;
    }
}
