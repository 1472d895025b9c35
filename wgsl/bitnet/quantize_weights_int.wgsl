// w [rows, columns] to codes of `bits` bits per group of `group_size` columns of a row: code = clamp(round(w·s) + zero, 0, 2^bits - 1) with s = 1 / scale.
// Asymmetric: scale = (max - min) / (2^bits - 1) and zero = round(-min·s), where max and min are those of the group and of 0. Symmetric: scale =
// max|w| / (2^(bits-1) - 1), zero = 2^(bits-1). w_scale and w_zero are [rows, groups]. One workgroup per group of a row. A group whose scale is below
// 2^-80 is all zeros: codes, scale and zero. One that is not finite is too, but for its scale, NaN.
struct Params { rows: u32, columns: u32, words: u32, groups: u32, group_size: u32, bits: u32, symmetric: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> w: array<X>;
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> w_zero: array<f32>;

// Bits of the largest w and of the largest -w: those of numbers that are not negative order as the numbers do, with NaN above infinity.
alias Acc = vec2<u32>;
fn combine(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return vec2<u32>(max(a.x, b.x), max(a.y, b.y)); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_weights_int(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.rows * params.groups { return; }
    let row = index / params.groups;
    let first = (index - row * params.groups) * params.group_size;
    let end = min(first + params.group_size, params.columns);
    var largest = vec2<u32>(0u);
    for (var c = first + ids.local; c < end; c += THREADS) {
        let v = bitcast<u32>(f32(w[row * params.columns + c]));
        let size = v & 0x7fffffffu;
        largest = combine(largest, select(vec2<u32>(size, 0u), vec2<u32>(0u, size), v != size));
    }
    largest = over_lanes(largest, THREADS, 1u, ids.local);
    let above = bitcast<f32>(largest.x);
    let below = bitcast<f32>(largest.y);
    let most = f32((1u << params.bits) - 1u);
    let half_range = f32((1u << (params.bits - 1u)) - 1u);
    let symmetric = params.symmetric != 0u;
    let scale = exact_quotient(select(above + below, max(above, below), symmetric), select(most, half_range, symmetric));
    let finite = max(largest.x, largest.y) < 0x7f800000u && is_finite(scale);
    let steps = finite && scale >= 0x1p-80f;
    let s = exact_quotient(1.0, scale);
    let zero = select(min(round(below * s), most), half_range + 1.0, symmetric);

    let per_word = 32u / params.bits;
    // The last group takes what pads the row to whole vectors of words, too.
    let last = select((first + params.group_size) / per_word, params.words, end == params.columns);
    for (var i = first / per_word + ids.local; i < last; i += THREADS) {
        var word = 0u;
        for (var e = 0u; steps && e < per_word && per_word * i + e < params.columns; e += 1u) {
            let code = round(f32(w[row * params.columns + per_word * i + e]) * s) + zero;
            word |= u32(clamp(code, 0.0, most)) << (e * params.bits);
        }
        codes[row * params.words + i] = word;
    }
    if ids.local == 0u {
        w_scale[index] = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(select(0.0, scale, steps)), finite));
        w_zero[index] = select(0.0, zero, steps);
    }
}
