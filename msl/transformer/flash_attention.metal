// y = Σ_j e^(s_j)·v_j / Σ_j e^(s_j) and lse = ln Σ_j e^(s_j), s_j = scale·q·k_j, without a matrix of scores. Shapes, tiles and threadgroups are
// those of wgsl/transformer/flash_attention.wgsl.
struct Params { uint groups, tokens, dim, sharing, causal, add; float scale; };

// Threads of a row while its maximum is sought, and the columns of each.
#define PARTS (THREADS / ROWS)
#define PART (COLUMNS / PARTS)

// The softmax so far of a thread's part of a row: the row's largest score, and the part's Σ e^(s - largest).
struct Softmax { float largest, total; };

// Turns the scores in `weights` into e^(s - largest). Leaves in `of_row` what all that was added up before is to be multiplied with.
static inline Softmax exponentiate(
    Softmax before, uint row0, uint column0, uint tokens, uint causal, threadgroup float* weights, threadgroup float* shares,
    threadgroup float* of_row, uint local)
{
    const uint row = local / PARTS;
    const uint first = local % PARTS * PART;
    Softmax after = before;
    for (uint c = first; c < first + PART; ++c) {
        if (sees(tokens, causal, row0 + row, column0 + c)) after.largest = max(after.largest, weights[c * PITCH + row]);
    }
    shares[local] = after.largest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint p = 0; p < PARTS; ++p) after.largest = max(after.largest, shares[row * PARTS + p]);
    const float shrink = exp_negative(before.largest - after.largest);
    after.total = before.total * shrink;
    for (uint c = first; c < first + PART; ++c) {
        threadgroup float* at = weights + c * PITCH + row;
        *at = sees(tokens, causal, row0 + row, column0 + c) ? exp_negative(*at - after.largest) : 0.0f;
        after.total += *at;
    }
    if (first == 0) of_row[row] = shrink;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return after;
}

static inline float4 four_rows(threadgroup const float* of_row, uint local) {
    threadgroup const float* at = of_row + local / 16u * 4u;
    return float4(at[0], at[1], at[2], at[3]);
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void flash_attention(
    constant Params& params  [[buffer(0)]],
    device const X* q        [[buffer(1)]],
    device const X* k        [[buffer(2)]],
    device const X* v        [[buffer(3)]],
    device X* y              [[buffer(4)]],
    device float* lse        [[buffer(5)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup float staged[DEPTH * SLICE];
    threadgroup float weights[COLUMNS * PITCH];
    threadgroup float shares[THREADS];
    threadgroup float of_row[ROWS];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const uint tokens = params.tokens;
    const uint dim = params.dim;
    const uint tiles = (tokens + ROWS - 1u) / ROWS;
    const uint strips = (dim + 2u * WIDTH - 1u) / (2u * WIDTH);
    const uint head = index / (tiles * strips);
    const uint row0 = index / strips % tiles * ROWS;
    const uint d0 = index % strips * (2u * WIDTH);
    device const X* queries = q + head * tokens * dim;
    device const X* keys = k + head / params.sharing * tokens * dim;
    device const X* values = v + head / params.sharing * tokens * dim;

    Softmax softmax = Softmax{-3.4028234e38f, 0.0f};
    float4 low[4];
    float4 high[4];
    for (uint c = 0; c < 4; ++c) low[c] = high[c] = float4(0.0f);
    const uint end = params.causal != 0 ? min(tokens, row0 + ROWS) : tokens;
    for (uint column0 = 0; column0 < end; column0 += COLUMNS) {
        float4 scaled[2];
        scores(queries, row0, keys, column0, tokens, dim, staged, local, scaled);
        for (uint c = 0; c < 2; ++c) scaled[c] *= params.scale;
        put(scaled, weights, local);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        softmax = exponentiate(softmax, row0, column0, tokens, params.causal, weights, shares, of_row, local);
        const float4 shrink = four_rows(of_row, local);
        for (uint c = 0; c < 4; ++c) {
            low[c] *= shrink;
            high[c] *= shrink;
        }
        add_weighted(values, column0, d0, tokens, dim, weights, staged, local, low);
        if (d0 + WIDTH < dim) add_weighted(values, column0, d0 + WIDTH, tokens, dim, weights, staged, local, high);
    }

    shares[local] = softmax.total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint row = local / PARTS;
    if (local % PARTS == 0) {
        float total = 0.0f;
        for (uint p = 0; p < PARTS; ++p) total += shares[local + p];
        of_row[row] = total;
        if (row0 + row < tokens && d0 == 0) lse[head * tokens + row0 + row] = softmax.largest + log_positive(total);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float4 total = four_rows(of_row, local);
    for (uint c = 0; c < 4; ++c) {
        low[c] = low[c] / total;
        high[c] = high[c] / total;
    }
    write(y + head * tokens * dim, row0, d0, tokens, dim, params.add, 1.0f, low, local);
    write(y + head * tokens * dim, row0, d0 + WIDTH, tokens, dim, params.add, 1.0f, high, local);
}
