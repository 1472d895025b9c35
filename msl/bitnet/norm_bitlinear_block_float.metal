// BitLinear of a row that is normalized and rounded to block floating point here, for a token at a time, in one dispatch: as
// wgsl/bitnet/norm_bitlinear_block_float.wgsl with chunk_floats.wgsl, bit-identical. Every threadgroup prepares the row of its token for itself, in chunks of 16
// columns a thread, and multiplies each by `tile` rows of the matrix: a SIMD-group four of them at a time, of which a lane has a quad of words. What becomes of a
// product, and which row of the matrix is the i-th, is for the part before to say (rows_stored.metal, rows_gated.metal).
static_assert(THREADS == 128, "a chunk has a quad of words for each lane");

// Blocks of a chunk, and from one row's blocks to the next one's.
#define BLOCKS 16u
#define PITCH 17u

static inline uint magnitude(float4 v) {
    const uint4 bits = as_type<uint4>(v) & 0x7fffffffu;
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// The unit of a block, or its inverse, from the bits of its largest magnitude, as wgsl/bitnet/block_unit.wgsl.
static inline uint block_exponent(uint largest) { return max((largest + 0x20000u) >> 23, 32u); }
static inline float unit_for(uint largest) { return as_type<float>((block_exponent(largest) - 14u) << 23); }
static inline float inverse_unit(uint largest) { return as_type<float>((268u - block_exponent(largest)) << 23); }

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void norm_bitlinear_block_float(
    constant Params& params      [[buffer(0)]],
    device const uint4* codes    [[buffer(1)]],
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
    // Of each lane's quad of words, the quads of numbers that it meets, by place.
    threadgroup float4 x[16 * 32];
    // What blocks give to the rows of a turn, and the sums of all rows.
    threadgroup float of_blocks[16 * PITCH];
    threadgroup float totals[ROWS];
    const Ids ids = Ids{local, lane, subgroup};
    const uint token = group.y;
    const uint tile = group.x * params.tile;
    const uint quads = params.features / 4u, row_quads = params.words / 4u;
    device const float4* row = source + token * quads;

    float inverse = 1.0f;
    if (params.normalise != 0u) {
        uint largest = 0u;
        for (uint quad = local; quad < quads; quad += THREADS) largest = max(largest, magnitude(row[quad]));
        largest = group_max_u32(largest, scratch, ids);
        const float scale = square_scale(row_exponent(largest));
        uint2 squares = uint2(0u);
        for (uint quad = local; quad < quads; quad += THREADS) squares += quad_limbs(row[quad] * scale);
        inverse = inverse_rms(largest, group_sum2_u32(squares, scratch, ids), params.features, params.eps);
    }
    if (local < ROWS) totals[local] = 0.0f;
    // An odd lane scales the sums of the last two of four rows.
    const bool odd = (lane & 1u) != 0u;
    threadgroup float* own_blocks = of_blocks + subgroup * 4u * PITCH;

    for (uint first = 0u; first < params.blocks; first += BLOCKS) {
        // The chunk before has been multiplied.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Beyond the row, numbers are 0. Eight neighbors have a block.
        float4 v[4];
        uint largest = 0u;
        for (uint q = 0u; q < 4u; ++q) {
            const uint quad = 32u * first + 4u * local + q;
            v[q] = float4(0.0f);
            if (quad < quads) v[q] = row[quad];
            if (quad < quads && params.normalise != 0u) v[q] = v[q] * inverse * gain[quad];
            largest = max(largest, magnitude(v[q]));
        }
        largest = max(largest, quad_shuffle_xor(largest, ushort(1)));
        largest = max(largest, quad_shuffle_xor(largest, ushort(2)));
        largest = max(largest, simd_shuffle_xor(largest, ushort(4)));
        const float to_units = inverse_unit(largest), unit = unit_for(largest);
        for (uint q = 0u; q < 4u; ++q) x[(4u * (local & 3u) + q) * 32u + local / 4u] = rint(v[q] * to_units) * unit;
        threadgroup_barrier(mem_flags::mem_threadgroup);

        const uint count = params.blocks - first;
        const uint of_group = min(first + lane / 2u, params.blocks - 1u) / params.group_blocks;
        const uint quad = min(2u * first + lane, row_quads - 1u);
        for (uint turn = 4u * subgroup; turn < params.tile; turn += 4u * SUBGROUPS) {
            // Rows that do not exist are read as the last one, and not written.
            uint rows[4];
            uint4 words[4];
            for (uint r = 0u; r < 4u; ++r) {
                rows[r] = matrix_row(params, min(tile + turn + r, params.rows - 1u));
                words[r] = codes[rows[r] * row_quads + quad];
            }
            const float2 scale = float2(
                w_scale[(odd ? rows[2] : rows[0]) * params.groups + of_group], w_scale[(odd ? rows[3] : rows[1]) * params.groups + of_group]);
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (uint i = 0u; i < 4u; ++i) {
                uint even[4], uneven[4];
                for (uint r = 0u; r < 4u; ++r) {
                    even[r] = biased(words[r][i]);
                    uneven[r] = biased(words[r][i] >> 8);
                }
                for (uint f = 0u; f < 4u; ++f) {
                    const float4 numbers = x[(4u * i + f) * 32u + lane];
                    for (uint r = 0u; r < 4u; ++r) sum[r] = dot_in_order(weights(even[r], uneven[r], f), numbers, sum[r]);
                }
            }
            // Half sums of a block are exact, and so is their sum.
            for (uint r = 0u; r < 4u; ++r) sum[r] += quad_shuffle_xor(sum[r], ushort(1));
            // By way of threadgroup memory, so that a product and the sum that it goes to are never fused.
            const uint at = (odd ? 2u : 0u) * PITCH + lane / 2u;
            own_blocks[at] = (odd ? sum[2] : sum[0]) * scale.x;
            own_blocks[at + PITCH] = (odd ? sum[3] : sum[1]) * scale.y;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            if (lane < 4u) {
                float total = totals[turn + lane];
                // Written out, so that loads do not wait for sums; beyond the last block there is nothing to add.
                for (uint i = 0u; i < BLOCKS; ++i) total += i < count ? own_blocks[lane * PITCH + i] : 0.0f;
                totals[turn + lane] = total;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint output = tile + local;
    const bool writes = local < params.tile && output < params.rows;
    emit(params, y, token, output, writes, totals[min(local, ROWS - 1u)]);
}
