// The half layout; see wgsl/bitnet/half_planes.wgsl.
static inline uint place(uint words, uint token, uint plane, uint group) { return (token * 2u + plane) * words * 4u + group; }

static inline float power_of_four(int f) { return as_type<float>(uint(127 + 2 * f) << 23); }

static inline void store(device uint* x, uint words, uint token, uint group, int4 codes) {
    const half4 scaled = half4(float4(codes) * power_of_four(-int(group & 3u)));
    x[place(words, token, 0u, group)] = as_type<uint>(half2(scaled.x, scaled.z));
    x[place(words, token, 1u, group)] = as_type<uint>(half2(scaled.y, scaled.w));
}

static inline int4 load(device const uint* x, uint words, uint token, uint group) {
    const half2 even = as_type<half2>(x[place(words, token, 0u, group)]);
    const half2 odd = as_type<half2>(x[place(words, token, 1u, group)]);
    return int4(float4(float(even.x), float(odd.x), float(even.y), float(odd.y)) * power_of_four(int(group & 3u)));
}
