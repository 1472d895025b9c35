// Quantises one row per workgroup: a = 127 / max(max|v|, 1e-5), code = clamp(round(v·a), -128, 127), ties to even. Beside the codes it writes the
// scale a and two sums of the row: of the codes, and of the codes times 1024·4^-f, which BIAS in dot_biased.wgsl adds to a sum of products.
// A row with an infinity or a NaN gets scale NaN and codes 0: its outputs are NaN, and no other row is touched.
// A kernel that includes this defines `params.features`, `params.words` (words of 16 codes in a row), and
//     value(token, i)               the i-th number of the row
//     store(token, quad, codes)     writes codes 4·quad .. 4·quad + 4 of the row in a layout
fn quantize_row(token: u32, ids: Ids) {
    // The bits of floats >= 0 are ordered as the floats are, with NaN above infinity; and an integer maximum is one instruction on Apple GPUs,
    // where a float maximum is a tree of shuffles.
    var bits = 0u;
    for (var i = ids.local; i < params.features; i += THREADS) {
        bits = max(bits, bitcast<u32>(value(token, i)) & 0x7fffffffu);
    }
    bits = group_max_u32(bits, ids);
    let finite = bits < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 127.0);

    // Unsigned, since the weighted sum may wrap.
    var sums = vec2<u32>();
    for (var quad = ids.local; quad < params.words * 4u; quad += THREADS) {
        var codes = vec4<i32>(0);
        for (var j = 0u; j < 4u; j += 1u) {
            let i = quad * 4u + j;
            if finite && i < params.features { codes[j] = i32(clamp(round(value(token, i) * scale), -128.0, 127.0)); }
        }
        store(token, quad, codes);
        let total = bitcast<u32>(codes.x + codes.y + codes.z + codes.w);
        sums += vec2<u32>(total, total << (10u - 2u * (quad & 3u)));
    }
    sums = group_sum2_u32(sums, ids);
    if ids.local == 0u {
        x_scale[token] = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(scale), finite));
        x_sum[token] = bitcast<vec2<i32>>(sums);
    }
}
