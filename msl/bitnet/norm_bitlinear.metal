// BitLinear of a row that is normalized and quantized here, in the f16 layout: every threadgroup prepares the row of its token for itself, in
// threadgroup memory, and multiplies it by `tile` rows of the matrix, a SIMD-group ROWS rows at a time. Formulas, shapes, and what the parts before
// (rows_stored, rows_gated) say: wgsl/bitnet/norm_bitlinear.wgsl.
static_assert(ROWS == 8, "three exchanges leave each lane one of eight rows");

#define QUADS ((4 * VECTORS + THREADS - 1) / THREADS)

static inline uint magnitude(float4 v) {
    const uint4 bits = as_type<uint4>(v) & 0x7fffffffu;
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void norm_bitlinear(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device const float4* source  [[buffer(3)]],
    device const float4* gain    [[buffer(4)]],
    device float* y              [[buffer(5)]],
    uint2 group   [[threadgroup_position_in_grid]],
    uint local    [[thread_index_in_threadgroup]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint scratch[64];
    threadgroup uint4 x[2 * VECTORS];
    // To write a component is to write its vector, of which other threads write others.
    threadgroup uint* x_words = (threadgroup uint*)x;
    const Ids ids = Ids{local, lane, subgroup};
    const uint token = group.y;
    const uint tile = group.x * params.tile;
    const uint quads = params.features / 4u;

    float4 v[QUADS];
    uint largest = 0;
    for (uint q = 0; q < QUADS; ++q) {
        const uint at = local + q * THREADS;
        v[q] = float4(0.0f);
        if (at < quads) v[q] = source[token * quads + at];
        largest = max(largest, magnitude(v[q]));
    }
    largest = group_max_u32(largest, scratch, ids);
    if (params.normalise != 0u) {
        const float scale = square_scale(row_exponent(largest));
        uint2 squares = uint2(0u);
        for (uint q = 0; q < QUADS; ++q) squares += quad_limbs(v[q] * scale);
        const float inverse = inverse_rms(largest, group_sum2_u32(squares, scratch, ids), params.features, params.eps);
        largest = 0;
        for (uint q = 0; q < QUADS; ++q) {
            const uint at = local + q * THREADS;
            if (at < quads) v[q] = v[q] * inverse * gain[at];
            largest = max(largest, magnitude(v[q]));
        }
        largest = group_max_u32(largest, scratch, ids);
    }
    const bool finite = largest < 0x7f800000u;
    const float a = absmax_scale(as_type<float>(finite ? largest : 0u), 127.0f);
    uint2 sums = uint2(0u);
    for (uint q = 0; q < QUADS; ++q) {
        const uint quad = local + q * THREADS;
        // What the row lacks to whole words is 0, and so are its codes.
        if (quad < params.words * 4u) {
            const float4 rounded = finite ? clamp(rint(v[q] * a), float4(-128.0f), float4(127.0f)) : float4(0.0f);
            const half4 scaled = half4(rounded * as_type<float>((127u - 2u * (quad & 3u)) << 23));
            x_words[quad] = as_type<uint>(half2(scaled.x, scaled.z));
            x_words[4u * VECTORS + quad] = as_type<uint>(half2(scaled.y, scaled.w));
            const int4 four = int4(rounded);
            sums.x += as_type<uint>(four.x + four.y + four.z + four.w);
        }
    }
    // Its barriers are for `x` too.
    sums = group_sum2_u32(sums, scratch, ids);

    for (uint turn = subgroup * ROWS; turn < params.tile; turn += SUBGROUPS * ROWS) {
        // Rows that do not exist are read as the last one, and not written. Indices have 32 bits, and the load instruction adds them to the buffer's
        // pointer for free; a pointer for every row would cost 64-bit additions.
        uint start[ROWS];
        for (uint r = 0; r < ROWS; ++r) start[r] = matrix_row(params, min(tile + turn + r, params.rows - 1u)) * params.words;
        Acc acc[ROWS];
        for (uint r = 0; r < ROWS; ++r) acc[r] = 0;
        for (uint i = lane; i < params.words; i += 32) {
            uint w[ROWS];
            for (uint r = 0; r < ROWS; ++r) w[r] = codes[start[r] + i];
            const uint4 x0 = x[i];
            const uint4 x1 = x[VECTORS + i];
            for (uint r = 0; r < ROWS; ++r) acc[r] = dot_word(w[r], x0, x1, acc[r]);
        }
        // Lanes share their rows until lane l is left with row l % 8; then the lanes with the same row add up. Sums are exact in any order.
        SHARE(4, 1u, quad_shuffle_xor)
        SHARE(2, 2u, quad_shuffle_xor)
        SHARE(1, 4u, simd_shuffle_xor)
        Acc sum = acc[0];
        sum += simd_shuffle_xor(sum, ushort(8));
        sum += simd_shuffle_xor(sum, ushort(16));
        const uint output = tile + turn + lane;
        const bool writes = lane < ROWS && turn + lane < params.tile && output < params.rows;
        const float beta = w_scale[matrix_row(params, min(output, params.rows - 1u))];
        const float product = exact_quotient(finish(sum, int2(as_type<int>(sums.x), 0)) * beta, a);
        emit(params, y, token, output, writes, finite ? product : as_type<float>(0x7fc00000u));
    }
}
