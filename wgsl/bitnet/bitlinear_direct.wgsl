// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0, for devices that gain nothing by workgroup memory: no thread
// waits for another. codes is [rows, words] words of sixteen codes, x [tokens, words] vectors of sixteen int8, y [tokens, rows]. A thread makes four rows of
// TILE_Y tokens, 1 or 8. It decodes a weight once for all of them, two rows at a time: their codes lie in the halves of a number, so that one multiplication
// makes two products. Activations are the same for all threads. Exact for k < 2^17.
// A part before brings `Params`, and what is done to a product before it is stored (product_plain.wgsl, product_finish.wgsl).
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

alias Acc = i32;
// Neighboring threads store neighboring rows.
const APART: u32 = THREADS;
// The sums of this many words fit an f16: at most 2·128·128 = 2^15, and that only below 0.
const HELD: u32 = 8u;

// Codes are value + 1, so the sum of the activations is subtracted.
fn finish(sum: i32, x_sum: vec2<i32>) -> f32 { return f32(sum - x_sum.x); }

// The codes at a place of both halves of words.
fn decoded(words: vec2<u32>, place: u32) -> vec2<i32> { return vec2<i32>((words >> vec2<u32>(place)) & vec2<u32>(0x00030003u)); }

// sum + the products of a token's activations with word i of two pairs of rows: their codes 0, 1, 4, 5, .. are in `low`, 2, 3, 6, 7, .. in `high`. Tokens
// that do not exist are read as the last one, and not written.
fn multiplied(token: u32, i: u32, low: vec2<u32>, high: vec2<u32>, sum: vec2<i32>) -> vec2<i32> {
    var made = sum;
    for (var q = 0u; q < 4u; q += 1u) {
        let a = load(min(token, params.tokens - 1u), 4u * i + q);
        made += a.x * decoded(low, 2u * q) + a.y * decoded(low, 2u * q + 8u);
        made += a.z * decoded(high, 2u * q) + a.w * decoded(high, 2u * q + 8u);
    }
    return made;
}

// total + the sums of four rows, of which a number holds two.
fn on_top(total: vec4<i32>, sums: vec2<i32>) -> vec4<i32> {
    let even = (sums << vec2<u32>(16u)) >> vec2<u32>(16u);
    let odd = (sums - even) >> vec2<u32>(16u);
    return total + vec4<i32>(even.x, odd.x, even.y, odd.y);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_direct(group: Group, ids: Ids) {
    let row0 = group.id.x * TILE_X + ids.local;
    let token0 = group.id.y * TILE_Y;
    // Rows that do not exist are read as the last one, and not written.
    let start = min(row0 + APART * vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.rows - 1u)) * params.words;
    var totals = array<vec4<i32>, TILE_Y>();
    for (var first = 0u; first < params.words; first += HELD) {
        // A variable for each token, since compilers may put an array into memory instead of registers.
        var sum0 = vec2<i32>();
        var sum1 = vec2<i32>();
        var sum2 = vec2<i32>();
        var sum3 = vec2<i32>();
        var sum4 = vec2<i32>();
        var sum5 = vec2<i32>();
        var sum6 = vec2<i32>();
        var sum7 = vec2<i32>();
        for (var i = first; i < min(first + HELD, params.words); i += 1u) {
            let even = vec2<u32>(codes[start.x + i], codes[start.z + i]);
            let odd = vec2<u32>(codes[start.y + i], codes[start.w + i]);
            let low = (even & vec2<u32>(0xffffu)) | (odd << vec2<u32>(16u));
            let high = (even >> vec2<u32>(16u)) | (odd & vec2<u32>(0xffff0000u));
            sum0 = multiplied(token0, i, low, high, sum0);
            if TILE_Y > 1u {
                sum1 = multiplied(token0 + 1u, i, low, high, sum1);
                sum2 = multiplied(token0 + 2u, i, low, high, sum2);
                sum3 = multiplied(token0 + 3u, i, low, high, sum3);
                sum4 = multiplied(token0 + 4u, i, low, high, sum4);
                sum5 = multiplied(token0 + 5u, i, low, high, sum5);
                sum6 = multiplied(token0 + 6u, i, low, high, sum6);
                sum7 = multiplied(token0 + 7u, i, low, high, sum7);
            }
        }
        let sums = array<vec2<i32>, 8>(sum0, sum1, sum2, sum3, sum4, sum5, sum6, sum7);
        for (var t = 0u; t < TILE_Y; t += 1u) { totals[t] = on_top(totals[t], sums[t]); }
    }
    for (var t = 0u; t < TILE_Y; t += 1u) { write_rows(token0 + t, row0, totals[t]); }
}
