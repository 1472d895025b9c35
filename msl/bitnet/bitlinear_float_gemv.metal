// y[t, r] = Σ_k a[t, k]·Wq[r, k]·w_scale[r, group of k], on top of y if `add` is not 0, for few tokens t, whose activations are floats. A SIMD-group
// makes four rows × TILE_Y = 4 tokens: each lane takes every 32nd word of the rows. The sixteen products of a word are ±x or 0, so exact. They are added
// in order, scaled, and added to what the lane has; lanes are added in their order, as in wgsl/bitnet/bitlinear_float_gemv.wgsl. `ALIGNED` is 1 where
// the rows of a are whole quads, and 2 where they are words, whose quads lie by place (wgsl/tensor/quads_by_place.wgsl).
struct Params { uint m, n, k, words, groups, group_words, transposed, add, biased, activation; };

// Quad f of a word, times 4^f: the last bits of 1024 as a half count its ones, so two masked fields, put there, are 1024 + code·4^f, and a
// subtraction, which is exact, makes them value·4^f: no conversion, and a shift for eight weights.
static inline float4 weights(uint word, uint f) {
    const uint mask = 0x00030003u << (2 * f);
    const half2 zero = half2(half(1024u + (1u << (2 * f))));
    const half2 even = as_type<half2>((word & mask) | 0x64006400u) - zero;
    const half2 odd = as_type<half2>(((word >> 8) & mask) | 0x64006400u) - zero;
    return float4(float(even.x), float(odd.x), float(even.y), float(odd.y));
}

// Activations for `weights`: multiplied by 4^-f, once for all rows; 0 where there is none.
static inline float4 activations(device const X* a, uint first, uint at, uint f, uint k) {
    const float one = as_type<float>((127u - 2u * f) << 23);
    if (ALIGNED == 2) return float4(*(device const X4*)(a + first + 4u * (f * (k / 16u) + at / 16u))) * one;
    if (ALIGNED == 1) return at < k ? float4(*(device const X4*)(a + first + at)) * one : float4(0.0f);
    float4 x = float4(0.0f);
    for (uint i = 0; i < 4; ++i) x[i] = at + i < k ? float(a[first + at + i]) : 0.0f;
    return x * one;
}

static inline float dot_in_order(float4 w, float4 x, float sum) {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_float_gemv(
    constant Params& params      [[buffer(0)]],
    device const X* a            [[buffer(1)]],
    device const uint* codes     [[buffer(2)]],
    device const float* w_scale  [[buffer(3)]],
    device Y* y                  [[buffer(4)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    // What lanes have of four rows, by token.
    threadgroup float4 of_lanes[TILE_Y * THREADS];
    const uint row0 = group.x * TILE_X + subgroup * 4u;
    const uint token0 = group.y * TILE_Y;
    // Rows that do not exist are read as the last one, and not written.
    uint rows[4];
    for (uint r = 0; r < 4; ++r) rows[r] = min(row0 + r, params.n - 1u);
    float sum[TILE_Y][4];
    for (uint t = 0; t < TILE_Y; ++t) {
        for (uint r = 0; r < 4; ++r) sum[t][r] = 0.0f;
    }
    for (uint i = lane; 16u * i < params.k; i += 32) {
        uint word[4];
        float scale[4];
        for (uint r = 0; r < 4; ++r) {
            word[r] = codes[rows[r] * params.words + i];
            scale[r] = w_scale[rows[r] * params.groups + i / params.group_words];
        }
        float of_word[TILE_Y][4];
        for (uint t = 0; t < TILE_Y; ++t) {
            for (uint r = 0; r < 4; ++r) of_word[t][r] = 0.0f;
        }
        for (uint f = 0; f < 4; ++f) {
            float4 w[4];
            for (uint r = 0; r < 4; ++r) w[r] = weights(word[r], f);
            for (uint t = 0; t < TILE_Y; ++t) {
                if (token0 + t >= params.m) continue;
                const float4 x = activations(a, (token0 + t) * params.k, 16u * i + 4u * f, f, params.k);
                for (uint r = 0; r < 4; ++r) of_word[t][r] = dot_in_order(w[r], x, of_word[t][r]);
            }
        }
        for (uint t = 0; t < TILE_Y; ++t) {
            for (uint r = 0; r < 4; ++r) sum[t][r] = fma(of_word[t][r], scale[r], sum[t][r]);
        }
    }
    const uint first = subgroup * 32u;
    for (uint t = 0; t < TILE_Y; ++t) of_lanes[t * THREADS + first + lane] = float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Lane i adds up row i % 4 of token i / 4.
    const uint token = token0 + lane / 4u, row = row0 + lane % 4u;
    if (lane >= 4u * TILE_Y || token >= params.m || row >= params.n) return;
    float all = 0.0f;
    for (uint i = 0; i < 32; ++i) all += of_lanes[lane / 4u * THREADS + first + i][lane % 4u];
    const uint at = token * params.n + row;
    y[at] = Y(params.add != 0 ? float(y[at]) + all : all);
}
