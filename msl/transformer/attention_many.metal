// Causal attention of many new tokens, after rope.metal: a threadgroup goes through all shares that its TILE_X rows see, and makes up to COLUMNS columns
// of their output. Its threads are 16 across by TILE_X / 2 down. A thread has two rows, 2·down and 2·down + 1: of scores those of the positions across,
// across + 16, .. of a share, and of the output every 16th quad. (In wgsl/transformer/attention_many.wgsl it has four, which takes more registers than
// these GPUs have.) What is added in which order is that of attention_share.metal.
#define DOWN (TILE_X / 2u)
// Quads of a head whose products are added between two barriers: a thread stages two quads of keys, and of values.
#define STEP 8u
// Every eighth position of a share is in one sum of values. Those of four sums are added between two barriers.
#define HALF_SPAN (SPAN / 2u)
// Quads of a row that a thread makes, one after another.
#define PASSES (COLUMNS / 64u)
// Keys and values are quads of a position, all else is numbers of two rows: threadgroup memory has, by turns, keys [STEP, SPAN], queries [4·STEP, DOWN]
// and the largest scores [2, DOWN]; weights [SPAN, DOWN], and sums of them [4, DOWN]; weights and values [HALF_SPAN, 16]. In pairs:
#define QUERIES (2u * STEP * SPAN)
#define LARGEST (QUERIES + 4u * STEP * PITCH)
#define BESIDE (SPAN * PITCH)

// Where the numbers of two rows are in a column of such. A column has one pair more, so that those that write a row meet different banks.
#define PITCH (DOWN + 1u)
static inline uint slot(uint column, uint down) { return column * PITCH + down; }

// Of four positions, numbers of two rows each.
struct Scores { float2 a, b, c, d; };
// A quad of each of two rows.
struct Quads { float4 a, b; };

static inline Scores added(Scores s, Scores t) { return Scores{s.a + t.a, s.b + t.b, s.c + t.c, s.d + t.d}; }
static inline Quads added(Quads s, Quads t) { return Quads{s.a + t.a, s.b + t.b}; }

static inline Quads weighted(float2 weight, float4 value, Quads sum) {
    return Quads{fma(float4(weight.x), value, sum.a), fma(float4(weight.y), value, sum.b)};
}

// Two of the eight sums of weighted values, and their sum: of every eighth position of the share from `chain` on, and of the next ones.
static inline Quads two_sums(threadgroup const float4* staged, threadgroup const float2* pairs, uint chain, uint there, uint across, uint down) {
    Quads even = Quads{float4(0.0f), float4(0.0f)}, odd = even;
    for (uint i = 0; 8u * i + chain < there; ++i) {
        threadgroup const float2* weight = pairs + slot(8u * i + chain, down);
        threadgroup const float4* value = staged + BESIDE / 2u + (4u * i + chain % 4u) * 16u + across;
        even = weighted(weight[0], value[0], even);
        odd = weighted(weight[PITCH], value[16], odd);
    }
    return added(even, odd);
}

// In the order of dot_quad.
static inline float2 dot_rows(threadgroup const float2* queries, uint quad, uint down, float4 key, float2 sum) {
    sum = fma(queries[slot(4u * quad, down)], float2(key.x), sum);
    sum = fma(queries[slot(4u * quad + 1u, down)], float2(key.y), sum);
    sum = fma(queries[slot(4u * quad + 2u, down)], float2(key.z), sum);
    return fma(queries[slot(4u * quad + 3u, down)], float2(key.w), sum);
}

// LOWEST instead of scores that rows do not see whose positions are from `begins` to `ends`.
static inline float2 seen(uint position, uint2 begins, uint2 ends, float2 v) {
    return float2(begins.x <= position && position < ends.x ? v.x : LOWEST, begins.y <= position && position < ends.y ? v.y : LOWEST);
}

static inline float2 exp_negatives(float2 x) { return float2(exp_negative(x.x), exp_negative(x.y)); }

// A row may see nothing of a share.
static inline float2 weights_of(float2 scores, float2 largest) {
    const float2 w = exp_negatives(scores - largest);
    return float2(scores.x == LOWEST ? 0.0f : w.x, scores.y == LOWEST ? 0.0f : w.y);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void attention_many(
    constant Params& params       [[buffer(0)]],
    device const uint2* runs      [[buffer(1)]],
    device const float2* qkv      [[buffer(2)]],
    device const C4* keys         [[buffer(3)]],
    device const C4* values       [[buffer(4)]],
    device float* y               [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    static_assert(STAGED == BESIDE / 2u + HALF_SPAN * 16u, "what threadgroup memory has");
    threadgroup float4 staged[STAGED];
    threadgroup float2* pairs = (threadgroup float2*)staged;
    // Of wider heads, several threadgroups compute the scores, each for its columns.
    const uint strips = (params.head_dim + COLUMNS - 1u) / COLUMNS;
    const uint2 taken = longest_first(group, groups);
    const uint strip = taken.y % strips * (COLUMNS / 4u);
    const Rows rows = rows_of(params, runs, taken.x, taken.y / strips, group.z);
    const uint cache_row = rows.sequence * params.kv_heads + rows.kv_head;
    // Neighbors are 8 across and 4 down, so that they read few vectors at a time.
    const uint across = local % 8u + local / 32u % 2u * 8u;
    const uint down = local / 8u % 4u + local / 64u * 4u;
    // Rows that do not exist are read as the last one, and not written.
    const uint last = rows.count - 1u;
    const uint asked = rows.first + local / 16u * 2u;
    const uint width = params.head_dim / 2u;
    const uint start_a = head_of(rows, min(asked, last), params.heads + 2u * params.kv_heads) * width;
    const uint start_b = head_of(rows, min(asked + 1u, last), params.heads + 2u * params.kv_heads) * width;
    const uint row = rows.first + 2u * down;
    const uint2 ends = uint2(
        min(rows.past + min(row, last) / rows.sharing + 1u, rows.visible),
        min(rows.past + min(row + 1u, last) / rows.sharing + 1u, rows.visible));
    const uint2 begins = uint2(
        start_of(rows.past, min(row, last) / rows.sharing, params.window),
        start_of(rows.past, min(row + 1u, last) / rows.sharing, params.window));
    const uint part = (rows.quads + 3u) / 4u;

    float2 largest = float2(LOWEST);
    float2 total = float2(0.0f);
    const Quads none = Quads{float4(0.0f), float4(0.0f)};
    Quads so_far[PASSES];
    for (uint p = 0; p < PASSES; ++p) so_far[p] = none;
    for (uint start = rows.start / SPAN * SPAN; start < rows.visible; start += SPAN) {
        // A score is four sums, each of a quarter of the quads.
        Scores scores = Scores{float2(0.0f), float2(0.0f), float2(0.0f), float2(0.0f)};
        Scores kept = scores;
#pragma clang loop unroll(disable)
        for (uint quarter = 0; quarter < 4; ++quarter) {
            Scores sums = Scores{float2(0.0f), float2(0.0f), float2(0.0f), float2(0.0f)};
            const uint end = min((quarter + 1u) * part, rows.quads);
            for (uint first = quarter * part; first < end; first += STEP) {
                // All loads are on their way before the barrier. Beyond the last quad, queries are 0; before the first position that is seen
                // and beyond the last, these are taken again.
                const uint pair = 2u * first + local % 16u;
                const float scale = pair < width ? params.scale : 0.0f;
                const float2 a = qkv[start_a + min(pair, width - 1u)];
                const float2 b = qkv[start_b + min(pair, width - 1u)];
                const uint position = clamp(start + local % SPAN, rows.start, rows.visible - 1u);
                const uint quad0 = min(first + local / SPAN, rows.quads - 1u);
                const uint quad1 = min(first + local / SPAN + STEP / 2u, rows.quads - 1u);
                const C4 key0 = keys[(cache_row * rows.quads + quad0) * params.capacity + position];
                const C4 key1 = keys[(cache_row * rows.quads + quad1) * params.capacity + position];
                threadgroup_barrier(mem_flags::mem_threadgroup);
                pairs[QUERIES + slot(2u * (local % 16u), local / 16u)] = float2(a.x, b.x) * scale;
                pairs[QUERIES + slot(2u * (local % 16u) + 1u, local / 16u)] = float2(a.y, b.y) * scale;
                staged[local] = float4(key0);
                staged[local + THREADS] = float4(key1);
                threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(disable)
                for (uint quad = 0; quad < min(STEP, end - first); ++quad) {
                    threadgroup const float4* key = staged + quad * SPAN + across;
                    sums.a = dot_rows(pairs + QUERIES, quad, down, key[0], sums.a);
                    sums.b = dot_rows(pairs + QUERIES, quad, down, key[16], sums.b);
                    sums.c = dot_rows(pairs + QUERIES, quad, down, key[32], sums.c);
                    sums.d = dot_rows(pairs + QUERIES, quad, down, key[48], sums.d);
                }
            }
            if (quarter % 2u == 0u) kept = sums;
            else if (quarter == 1u) scores = added(kept, sums);
            else scores = added(scores, added(kept, sums));
        }
        scores.a = seen(start + across, begins, ends, scores.a);
        scores.b = seen(start + across + 16u, begins, ends, scores.b);
        scores.c = seen(start + across + 32u, begins, ends, scores.c);
        scores.d = seen(start + across + 48u, begins, ends, scores.d);
        // Of the eight lanes across, then of both such groups.
        float2 most = max(max(scores.a, scores.b), max(scores.c, scores.d));
        for (ushort mask = 1; mask < 8; mask *= 2) most = max(most, float2(exchanged(most.x, mask), exchanged(most.y, mask)));
        if (across % 8u == 0u) pairs[LARGEST + slot(across / 8u, down)] = most;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        most = max(pairs[LARGEST + slot(0, down)], pairs[LARGEST + slot(1, down)]);
        pairs[slot(across, down)] = weights_of(scores.a, most);
        pairs[slot(across + 16u, down)] = weights_of(scores.b, most);
        pairs[slot(across + 32u, down)] = weights_of(scores.c, most);
        pairs[slot(across + 48u, down)] = weights_of(scores.d, most);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // One of the four sums of weights.
        if (local < 4u * DOWN) {
            float2 sum = pairs[slot(local / DOWN, local % DOWN)];
#pragma clang loop unroll(disable)
            for (uint i = 1; i < SPAN / 4u; ++i) sum += pairs[slot(4u * i + local / DOWN, local % DOWN)];
            pairs[BESIDE + slot(local / DOWN, local % DOWN)] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const float2 found = (pairs[BESIDE + slot(0, down)] + pairs[BESIDE + slot(1, down)]) + (pairs[BESIDE + slot(2, down)] + pairs[BESIDE + slot(3, down)]);

        // As `merged`.
        const float2 top = max(largest, most);
        const float2 shrink = exp_negatives(largest - top);
        const float2 grow = exp_negatives(most - top);
        largest = top;
        total = fma(found, grow, total * shrink);
        const uint there = min(SPAN, rows.visible - start);
        for (uint p = 0; p < PASSES; ++p) {
            const uint first = strip + p * 16u;
            // No break: a loop that may end early is not unrolled, and `so_far` not in registers then.
            if (first < rows.quads) {
                Quads sum;
                for (uint h = 0; h < 2; ++h) {
                    const uint position = start + local / 64u * 8u + h * 4u + local / 16u % 4u;
                    const uint quad = min(first + local % 16u, rows.quads - 1u);
                    const C4 value0 = values[(cache_row * params.capacity + clamp(position, rows.start, rows.visible - 1u)) * rows.quads + quad];
                    const C4 value1 = values[(cache_row * params.capacity + clamp(position + SPAN / 2u, rows.start, rows.visible - 1u)) * rows.quads + quad];
                    threadgroup_barrier(mem_flags::mem_threadgroup);
                    staged[BESIDE / 2u + local] = float4(value0);
                    staged[BESIDE / 2u + local + THREADS] = float4(value1);
                    threadgroup_barrier(mem_flags::mem_threadgroup);
                    const Quads front = two_sums(staged, pairs, h * 4u, there, across, down);
                    const Quads four = added(front, two_sums(staged, pairs, h * 4u + 2u, there, across, down));
                    if (h == 0u) sum = four;
                    else sum = added(sum, four);
                }
                so_far[p].a = fma(sum.a, float4(grow.x), so_far[p].a * shrink.x);
                so_far[p].b = fma(sum.b, float4(grow.y), so_far[p].b * shrink.y);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint p = 0; p < PASSES; ++p) {
        const uint quad = strip + p * 16u + across;
        if (row < rows.count) {
            device float* head = y + head_of(rows, row, params.heads) * params.head_dim;
            put(head, params.head_dim, quad, quotient(Merged{0.0f, total.x, so_far[p].a}), params.add != 0u);
        }
        if (row + 1u < rows.count) {
            device float* head = y + head_of(rows, row + 1u, params.heads) * params.head_dim;
            put(head, params.head_dim, quad, quotient(Merged{0.0f, total.y, so_far[p].b}), params.add != 0u);
        }
    }
}
