// Quantizes a row: a = 127 / max(max|v|, 1e-5), code = clamp(round(v·a), -128, 127), ties to even. Beside the codes it writes the
// scale a and two sums of the row: of the codes, and of the codes times 1024·4^-f, which BIAS in dot_biased.wgsl adds to a sum of products.
// A row with an infinity or a NaN gets scale NaN and codes 0: its outputs are NaN, and no other row is touched.
// Of a row as shared/row.wgsl has it. A layout brings store(token, quad, codes), which writes codes 4·quad .. 4·quad + 4 of a row of
// `params.words` words of sixteen.

// Stores the codes of a quad; gives their two sums, unsigned, since the weighted one may wrap.
fn quantize_quad(token: u32, quad: u32, v: vec4<f32>, scale: f32) -> vec2<u32> {
    if quad >= 4u * params.words { return vec2<u32>(); }
    let codes = codes_of(v, scale);
    store(token, quad, codes);
    let total = bitcast<u32>((codes.x + codes.y) + (codes.z + codes.w));
    return vec2<u32>(total, total << (10u - 2u * (quad & 3u)));
}

fn quantize_row(token: u32, ids: Ids) {
    let bits = largest_of_row(token, ids);
    let finite = bits < 0x7f800000u;
    var scale = 0.0;
    if is_one(ids) { scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 127.0); }
    scale = from_one(7u, scale, ids);
    var sums = vec2<u32>();
    for (var h = 0u; h < HELD; h += 1u) {
        sums += quantize_quad(token, place(ids) + h * SHARERS, select(vec4<f32>(), held[h], finite), scale);
    }
    for (var quad = beyond(ids); quad < 4u * params.words; quad += SHARERS) {
        sums += quantize_quad(token, quad, select(vec4<f32>(), finished(fetched_numbers(token, quad), quad), finite), scale);
    }
    sums = cell_sum2(4u, sums, ids);
    if place(ids) == 0u {
        x_scale[token] = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(scale), finite));
        x_sum[token] = bitcast<vec2<i32>>(sums);
    }
}
