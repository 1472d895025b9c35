// The products of a word, sixteen weights of a row, with activations in floats: they are ±x or 0, so exact, and are added in order.

// The codes of a word at even or at odd places, four in each of two f16, each with the bits of 1024. These count its last bits, so with one field
// of codes left in place, a half is 1024 + code·4^f.
static inline uint biased(uint codes) { return codes | 0x64006400u; }

// Field f of two such f16 as value = code - 1, in exact steps: no conversion, and a shift for eight weights.
static inline float2 values(uint halves, uint f) {
    const float2 v = float2(as_type<half2>(halves & (0x64006400u | 0x00030003u << (2u * f))));
    const float one = as_type<float>((127u - 2u * f) << 23);
    return fma(v, float2(one), float2(-1024.0f * one - 1.0f));
}

// Quad f of a word.
static inline float4 weights(uint even, uint odd, uint f) {
    const float2 first = values(even, f), second = values(odd, f);
    return float4(first.x, second.x, first.y, second.y);
}

static inline float dot_in_order(float4 w, float4 x, float sum) {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}
