// Writes and reads the four codes of a quad in the f16 layout, which wgsl/bitnet/f16_planes.wgsl describes.
static inline uint plane_index(uint words, uint token, uint plane, uint quad) { return (token * 2u + plane) * words * 4u + quad; }

static inline float power_of_four(int f) { return as_type<float>(uint(127 + 2 * f) << 23); }

static inline void store(device uint* x, uint words, uint token, uint quad, int4 codes) {
    const half4 scaled = half4(float4(codes) * power_of_four(-int(quad & 3u)));
    x[plane_index(words, token, 0u, quad)] = as_type<uint>(half2(scaled.x, scaled.z));
    x[plane_index(words, token, 1u, quad)] = as_type<uint>(half2(scaled.y, scaled.w));
}

static inline int4 load(device const uint* x, uint words, uint token, uint quad) {
    const half2 even = as_type<half2>(x[plane_index(words, token, 0u, quad)]);
    const half2 odd = as_type<half2>(x[plane_index(words, token, 1u, quad)]);
    return int4(float4(float(even.x), float(odd.x), float(even.y), float(odd.y)) * power_of_four(int(quad & 3u)));
}
