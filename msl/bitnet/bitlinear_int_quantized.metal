// y[t, r] = Σ_g w_scale[r, g]·(Σ xq·code - w_zero[r, g]·Σ xq) / x_scale[t], sums within groups of `group_size` columns, added to y if `add` is not 0, as
// wgsl/bitnet/bitlinear_int_quantized.wgsl has it: the same integers, and groups in the same order. A threadgroup makes TILE_X rows, one a thread, of TILE_Y tokens, and stages UNITS units of 32
// columns at a time: groups are whole units, and a unit is `bits` words of codes.
// A part before says what is done to a product before it is stored (msl/tensor/product_plain.metal, product_finish.metal).
struct Params { uint rows, tokens, columns, words, x_words, groups, group_size, bits, add, biased, activation; };

// Four neighbors of a shifted word, of which a word has this many.
#define QUADS 8u
// One longer than the most words, so that threads, a row each, meet no bank twice.
#define PITCH 33u
static_assert(PITCH == UNITS * QUADS + 1u, "a row of staged codes");

// Padding, and what lies beyond it, is 0; so it does not matter which codes meet it.
static inline float value(constant Params& params, device const uint* x, uint token, uint column) {
    if (token >= params.tokens || column / 4u >= params.x_words) return 0.0f;
    return float(((device const char*)x)[4u * token * params.x_words + column]);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void bitlinear_int_quantized(
    constant Params& params      [[buffer(0)]],
    device const uint* codes     [[buffer(1)]],
    device const float* w_scale  [[buffer(2)]],
    device const float* w_zero   [[buffer(3)]],
    device const uint* x         [[buffer(4)]],
    device const float* x_scale  [[buffer(5)]],
    device Y* y                  [[buffer(6)]] BIAS_ARGUMENT,
    uint2 group [[threadgroup_position_in_grid]],
    uint local  [[thread_index_in_threadgroup]])
{
    threadgroup uint staged_codes[TILE_X * PITCH];
    threadgroup float4 staged_x[TILE_Y * UNITS * QUADS];
    // Σ xq of a token's unit.
    threadgroup int staged_sums[TILE_Y * UNITS];
    const uint first_row = group.x * TILE_X;
    const uint first_token = group.y * TILE_Y;
    const uint row = first_row + local;
    // A byte has 2^by codes.
    const uint by = 3u - ctz(params.bits);
    const uint fields = 1u << by;
    const uint mask = (0xffu >> (8u - params.bits)) * 0x00010001u;
    const uint staged_words = UNITS * params.bits;
    int products[TILE_Y], x_sums[TILE_Y];
    float sums[TILE_Y];
    for (uint t = 0; t < TILE_Y; ++t) {
        products[t] = 0;
        x_sums[t] = 0;
        sums[t] = 0.0f;
    }
    // The group that a unit is of, and the columns of it that were taken.
    uint affine = min(row, params.rows - 1u) * params.groups, taken = 0;
    for (uint first = 0; first < params.columns; first += UNITS * 32u) {
        for (uint i = local; i < TILE_X * staged_words; i += THREADS) {
            const uint of_row = i / staged_words;
            const uint word = i % staged_words;
            const uint at = first / 32u * params.bits + word;
            const bool there = first_row + of_row < params.rows && at < params.words;
            staged_codes[of_row * PITCH + word] = there ? codes[(first_row + of_row) * params.words + at] : 0u;
        }
        // The activations that meet field f of word i of a row: a word that is shifted by f codes has every 2^by-th code in the low bits of a byte.
        for (uint i = local; i < TILE_Y * UNITS * QUADS; i += THREADS) {
            const uint at = i % (UNITS * QUADS);
            const uint token = first_token + i / (UNITS * QUADS);
            const uint column = first + (at >> by << by) * 4u + (at & (fields - 1u));
            for (uint e = 0; e < 4; ++e) staged_x[i][e] = value(params, x, token, column + (e << by));
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = local; i < TILE_Y * UNITS; i += THREADS) {
            float4 sum = float4(0.0f);
            for (uint q = 0; q < QUADS; ++q) sum += staged_x[i * QUADS + q];
            staged_sums[i] = int(sum.x + sum.y + sum.z + sum.w);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint units = min(uint(UNITS), (params.columns - first + 31u) / 32u);
        for (uint unit = 0; unit < units; ++unit) {
            float of_unit[TILE_Y];
            for (uint t = 0; t < TILE_Y; ++t) of_unit[t] = 0.0f;
            for (uint q = 0; q < QUADS; ++q) {
                // The last bits of 1024 as a half count its ones, so codes that are put there are 1024 + code. |Σ| of 32 products is below 2^23: exact.
                const uint word = staged_codes[local * PITCH + ((unit * QUADS + q) >> by)] >> ((q & (fields - 1u)) * params.bits);
                const half2 even = as_type<half2>((word & mask) | 0x64006400u);
                const half2 odd = as_type<half2>(((word >> 8) & mask) | 0x64006400u);
                for (uint t = 0; t < TILE_Y; ++t) {
                    const float4 v = staged_x[(t * UNITS + unit) * QUADS + q];
                    const float of_pair = fma(float(odd.x), v.y, fma(float(even.x), v.x, of_unit[t]));
                    of_unit[t] = fma(float(odd.y), v.w, fma(float(even.y), v.z, of_pair));
                }
            }
            taken += 32u;
            const bool ends = taken >= params.group_size || first + unit * 32u + 32u >= params.columns;
            const float scale = ends ? w_scale[affine] : 0.0f;
            const float zero = ends ? w_zero[affine] : 0.0f;
            for (uint t = 0; t < TILE_Y; ++t) {
                const int x_sum = staged_sums[t * UNITS + unit];
                products[t] += int(of_unit[t]) - 1024 * x_sum;
                x_sums[t] += x_sum;
                if (!ends) continue;
                sums[t] = fma(scale, float(products[t]) - zero * float(x_sums[t]), sums[t]);
                products[t] = 0;
                x_sums[t] = 0;
            }
            affine += uint(ends);
            taken = ends ? 0u : taken;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint t = 0; t < TILE_Y; ++t) {
        const uint token = first_token + t;
        if (row < params.rows && token < params.tokens) {
            const uint at = token * params.rows + row;
            const float v = FINISHED(exact_quotient(sums[t], x_scale[token]), row);
            y[at] = Y(params.add != 0 ? float(y[at]) + v : v);
        }
    }
}
