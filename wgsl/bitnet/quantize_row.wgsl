// Quantises one row per workgroup: a = 127 / max(max|v|, 1e-5), code = clamp(round(v·a), -128, 127), ties to even. The kernel that
// includes this has `params.features`, `params.words` (of 16 codes, a row) and these functions:
//     value(token, i)                the number to quantise
//     store(token, group, codes)     a layout's: codes 4·group .. 4·group + 4 of the row
// A row with an infinity or a NaN gets scale NaN and codes 0, so that its outputs are NaN and no other row is touched.
const NOT_FINITE: u32 = 0x7f800000u;

fn quantize_row(token: u32, ids: Ids) {
    // The bits of floats >= 0 order like integers, NaN above infinity; and an integer maximum is one instruction on Apple GPUs,
    // where that of floats is a tree of shuffles.
    var bits = 0u;
    for (var i = ids.local; i < params.features; i += THREADS) {
        bits = max(bits, bitcast<u32>(value(token, i)) & 0x7fffffffu);
    }
    bits = group_max_u32(bits, ids);
    let finite = bits < NOT_FINITE;
    // As PyTorch computes 127 / t: the reciprocal first. Reciprocals of numbers from 2^126 on would be subnormal, which GPUs may flush.
    let largest = max(bitcast<f32>(select(0u, bits, finite)), 1e-5);
    let shrink = select(1.0, 0x1p-32f, largest >= 0x1p126f);
    let scale = exact_quotient(1.0, largest * shrink) * 127.0 * shrink;

    var sums = vec2<i32>();
    for (var group = ids.local; group < params.words * 4u; group += THREADS) {
        var codes = vec4<i32>(0);
        for (var j = 0u; j < 4u; j += 1u) {
            let i = group * 4u + j;
            if finite && i < params.features { codes[j] = i32(clamp(round(value(token, i) * scale), -128.0, 127.0)); }
        }
        store(token, group, codes);
        let total = codes.x + codes.y + codes.z + codes.w;
        sums += vec2<i32>(total, total << (10u - 2u * (group & 3u)));
    }
    sums = group_sum2_i32(sums, ids);
    if ids.local == 0u {
        x_scale[token] = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(scale), finite));
        x_sum[token] = sums;
    }
}
