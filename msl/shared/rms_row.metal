// rms.metal for a row in memory: `element(i)` is its i-th number. All threads of the threadgroup must call this together.
template <typename Element>
static float exact_inverse_rms(Element element, uint features, float eps, threadgroup uint* scratch, Ids ids) {
    uint largest = 0;
    for (uint i = ids.local; i < features; i += THREADS) largest = max(largest, as_type<uint>(element(i)) & 0x7fffffffu);
    largest = group_max_u32(largest, scratch, ids);
    const float scale = square_scale(row_exponent(largest));
    uint2 sums = uint2(0u);
    for (uint i = ids.local; i < features; i += THREADS) sums += limbs(square(element(i) * scale));
    return inverse_rms(largest, group_sum2_u32(sums, scratch, ids), features, eps);
}
