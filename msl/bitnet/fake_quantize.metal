// v + lambda·(ṽ - v), where ṽ = clamp(round(v·scale), -128, 127) / scale; see wgsl/bitnet/fake_quantize.wgsl.
static inline float fake_quantize(float v, float scale, float lambda, bool finite) {
    const int code = int(clamp(rint(v * scale), -128.0f, 127.0f));
    const float rounded = as_type<float>(code == 0 ? 0u : as_type<uint>(exact_quotient(float(code), scale)));
    const float warmed = lambda == 1.0f ? rounded : v + lambda * (rounded - v);
    return as_type<float>(finite ? as_type<uint>(warmed) : 0x7fc00000u);
}
