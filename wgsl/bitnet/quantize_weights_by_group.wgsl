// Absmean quantization of w [rows, columns] per group of `group_words` words of sixteen columns: s = 1 / max(mean|w|, 1e-5) over the group, code =
// clamp(round(w·s), -1, 1) + 1, w_scale [rows, groups] = 1 / s. One workgroup per group of a row; the mean is added in a fixed order, so results are
// bit-identical on every device. Where it is not finite, all values of the group are 0 and its scale NaN.
struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> w_scale: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_weights_by_group(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.rows * params.groups { return; }
    let row = index / params.groups;
    let first_word = (index - row * params.groups) * params.group_words;
    let first = 16u * first_word;
    let end = min(first + 16u * params.group_words, params.columns);
    var sum = 0.0;
    for (var c = first + ids.local; c < end; c += THREADS) { sum += abs(f32(w[row * params.columns + c])); }
    let mean = exact_quotient(fixed_tree(sum, ids.local), f32(end - first));
    let finite = is_finite(mean);
    let s = exact_quotient(1.0, max(mean, 1e-5));
    // The last group takes what pads the row to whole vectors of words, too.
    let last = select(first_word + params.group_words, params.words, end == params.columns);
    for (var i = first_word + ids.local; i < last; i += THREADS) {
        var word = ZEROS;
        for (var e = 0u; finite && e < 16u && 16u * i + e < params.columns; e += 1u) {
            let value = i32(clamp(round(f32(w[row * params.columns + 16u * i + e]) * s), -1.0, 1.0));
            word = insertBits(word, u32(value + 1), code_bit(e), 2u);
        }
        codes[row * params.words + i] = word;
    }
    let scale = bitcast<u32>(exact_quotient(1.0, s));
    if ids.local == 0u { w_scale[index] = bitcast<f32>(select(0x7fc00000u, scale, finite)); }
}
