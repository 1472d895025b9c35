// Quantizes one row per threadgroup. The formula, the sums, and what happens to rows that are not finite: wgsl/bitnet/quantize_row.wgsl.
// `value(i)` is the i-th number of the row.
template <typename Value>
static void quantize_row(Value value, uint features, uint words, device uint* x, device float* x_scale, device int2* x_sum,
                         uint token, threadgroup uint* scratch, Ids ids)
{
    uint bits = 0;
    for (uint i = ids.local; i < features; i += THREADS) bits = max(bits, as_type<uint>(value(i)) & 0x7fffffffu);
    bits = group_max_u32(bits, scratch, ids);
    const bool finite = bits < 0x7f800000u;
    const float scale = absmax_scale(as_type<float>(finite ? bits : 0u), 127.0f);

    // Unsigned, since the weighted sum may wrap.
    uint2 sums = uint2(0u);
    for (uint quad = ids.local; quad < words * 4u; quad += THREADS) {
        int4 codes = int4(0);
        for (uint j = 0; j < 4; ++j) {
            const uint i = quad * 4u + j;
            if (finite && i < features) codes[j] = int(clamp(rint(value(i) * scale), -128.0f, 127.0f));
        }
        store(x, words, token, quad, codes);
        const uint total = as_type<uint>(codes.x + codes.y + codes.z + codes.w);
        sums += uint2(total, total << (10u - 2u * (quad & 3u)));
    }
    sums = group_sum2_u32(sums, scratch, ids);
    if (ids.local == 0) {
        x_scale[token] = as_type<float>(finite ? as_type<uint>(scale) : 0x7fc00000u);
        x_sum[token] = as_type<int2>(sums);
    }
}
