// The attention of TILE_X rows to a share: SPAN neighboring positions of a key head. What rows and shares are, and in which order is added:
// wgsl/transformer/attention_share.wgsl.
#define QUADS (MAX_QUADS / (THREADS / 8u))
// Has the scaled queries of the rows in threadgroup memory; a barrier must follow. `head_quad(head, quad)` is elements 4·quad .. of a head of qkv.
template <typename HeadQuad>
static void load_queries(constant Params& params, Rows rows, HeadQuad head_quad, threadgroup float4* queries, uint local) {
    for (uint i = local; i < TILE_X * rows.quads; i += THREADS) {
        const uint row = rows.first + i / rows.quads;
        float4 q = float4(0.0f);
        if (row < rows.count) q = head_quad(head_of(rows, row, params.heads + 2u * params.kv_heads), i % rows.quads) * params.scale;
        queries[i] = q;
    }
}

static inline float exchanged(float v, ushort mask) { return mask < 4 ? quad_shuffle_xor(v, mask) : simd_shuffle_xor(v, mask); }

static inline float4 exchanged(float4 v, ushort mask) {
    return float4(exchanged(v.x, mask), exchanged(v.y, mask), exchanged(v.z, mask), exchanged(v.w, mask));
}

// Of `n` numbers of rows, each of two lanes that differ in the bit `mask` keeps every second, and adds what the other has of it.
template <typename T>
static inline void fold(uint n, ushort mask, thread T* v, uint local) {
    const bool odd = (local & mask) != 0u;
    for (uint r = 0; r < n / 2u; ++r) {
        const T first = v[2u * r];
        const T second = v[2u * r + 1u];
        v[r] = (odd ? second : first) + exchanged(odd ? first : second, mask);
    }
}

static inline float dot_quad(float4 a, float4 b, float sum) { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum)))); }

static inline float largest_of(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }

// What a thread knows of a share: of row `local % TILE_X`, the largest score, the sum of e^(score - largest), and of quads local / 8, and 32 further,
// the values weighted by these.
struct Share { float largest, total; float4 sum[QUADS]; };

// All threads of the threadgroup must call this together. `weights` is TILE_X rows of SPAN numbers.
static Share attend(constant Params& params, Rows rows, device const C4* keys, device const C4* values, uint share,
                    threadgroup const float4* queries, threadgroup float4* weight_quads, uint local)
{
    threadgroup float* weights = (threadgroup float*)weight_quads;
    const uint start = share * SPAN;
    const uint cache_row = rows.sequence * params.kv_heads + rows.kv_head;

    // A thread adds a quarter of the products of a position for all rows; four threads bring theirs together, each for every fourth row.
    const uint quarter = local % 4u;
    const uint position = start + local / 4u;
    const uint part = (rows.quads + 3u) / 4u;
    float score[TILE_X];
    for (uint r = 0; r < TILE_X; ++r) score[r] = 0.0f;
    if (rows.start <= position && position < rows.visible) {
        const uint end = min((quarter + 1u) * part, rows.quads);
        for (uint d = quarter * part; d < end; ++d) {
            const float4 k = float4(keys[(cache_row * rows.quads + d) * params.capacity + position]);
            for (uint r = 0; r < TILE_X; ++r) score[r] = dot_quad(queries[r * rows.quads + d], k, score[r]);
        }
    }
    fold(TILE_X, 1, score, local);
    fold(TILE_X / 2, 2, score, local);
    for (uint r = 0; r < TILE_X / 4; ++r) {
        const uint row = 4u * r + quarter;
        const uint token = (rows.first + row) / rows.sharing;
        const bool seen = position < rows.visible && position <= rows.past + token && start_of(rows.past, token, params.window) <= position;
        if (!seen) score[r] = LOWEST;
        weights[row * SPAN + local / 4u] = score[r];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float largest[TILE_X / 4];
    for (uint r = 0; r < TILE_X / 4; ++r) {
        threadgroup const float4* row = weight_quads + (4u * r + quarter) * (SPAN / 4u);
        float4 most = row[0];
        for (uint i = 1; i < SPAN / 4u; ++i) most = max(most, row[i]);
        largest[r] = largest_of(most);
        score[r] = score[r] == LOWEST ? 0.0f : exp_negative(score[r] - largest[r]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < TILE_X / 4; ++r) weights[(4u * r + quarter) * SPAN + local / 4u] = score[r];
    threadgroup_barrier(mem_flags::mem_threadgroup);

    Share found;
    found.largest = largest[0];
    if (TILE_X == 8 && (local & 4u) != 0u) found.largest = largest[TILE_X / 4 - 1];
    threadgroup const float4* own = weight_quads + local % TILE_X * (SPAN / 4u);
    float4 total = own[0];
    for (uint i = 1; i < SPAN / 4u; ++i) total += own[i];
    found.total = (total.x + total.y) + (total.z + total.w);

    // A thread adds the values of every eighth position for all rows; eight threads bring theirs together, each for one row.
    for (uint q = 0; q < QUADS; ++q) {
        const uint quad = local / 8u + q * (THREADS / 8u);
        float4 sum[TILE_X];
        for (uint r = 0; r < TILE_X; ++r) sum[r] = float4(0.0f);
        if (quad < rows.quads) {
            for (uint i = local % 8u; i < SPAN && start + i < rows.visible; i += 8u) {
                const float4 v = float4(values[(cache_row * params.capacity + max(start + i, rows.start)) * rows.quads + quad]);
                for (uint r = 0; r < TILE_X; ++r) sum[r] = fma(float4(weights[r * SPAN + i]), v, sum[r]);
            }
        }
        // The same for all threads, since they exchange.
        if (q * (THREADS / 8u) < rows.quads) {
            fold(TILE_X, 1, sum, local);
            fold(TILE_X / 2, 2, sum, local);
            if (TILE_X == 8) fold(2, 4, sum, local);
            else sum[0] += exchanged(sum[0], 4);
        }
        found.sum[q] = sum[0];
    }
    // Before the weights of another share.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return found;
}
