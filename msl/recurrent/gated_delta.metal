// The gated delta rule, token by token: S = g·S + k (β (v - (g·S)ᵀ k))ᵀ and y = Sᵀ q · scale. One threadgroup per run, value head and COLUMNS columns of
// its state, which it holds in registers: PARTS threads share a column. A token's query, key and value are loaded while the token before is computed, and
// the rates of THREADS tokens at once. Shapes: wgsl/recurrent/gated_delta.wgsl.
struct Params { uint groups, run, sequences, key_heads, value_heads, key_dim, value_dim, tiled; float scale; };

// Added to the sum of squares of a query or a key.
#define EPS 1e-6f
// Queries and keys of a token are staged by parts: of each, pairs of its numbers (query, key, query, key), and a place that separates it from the next:
// PITCH places.
#define PAIRS (HELD / 2)

// Number k of the query and of the key that begin there; beyond their width zeros.
static inline float2 number(device const float* mixed, uint query, uint key, uint width, uint k) {
    return float2(k < width ? mixed[query + k] : 0.0f, k < width ? mixed[key + k] : 0.0f);
}

// What thread number `local` stages of a token: numbers 2·h and 2·h + 1 of a part.
static inline float4 staged_pair(constant Params& params, device const float* mixed, uint query, uint local) {
    const uint key = query + params.key_heads * params.key_dim;
    const uint k = 2 * (local / PARTS) * PARTS + local % PARTS;
    return float4(number(mixed, query, key, params.key_dim, k), number(mixed, query, key, params.key_dim, k + PARTS));
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void gated_delta(
    constant Params& params      [[buffer(0)]],
    device const uint2* runs     [[buffer(1)]],
    device const float* mixed    [[buffer(2)]],
    device const float* alpha    [[buffer(3)]],
    device const float* beta     [[buffer(4)]],
    device const float* dt_bias  [[buffer(5)]],
    device const float* decay    [[buffer(6)]],
    device float* state          [[buffer(7)]],
    device float* y              [[buffer(8)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    // Each thread's share of what the state has for the key, and of what is read.
    threadgroup float products[THREADS];
    threadgroup float reads[THREADS];
    // Shares of the squares of the query, and of the key, which are the same for all columns. Every lane stores them: if one did, compilers would sum up
    // in its branch, and hold all numbers in registers until then.
    threadgroup float2 squares[THREADS];
    // How much of the state a token keeps, and how much of it is written.
    threadgroup float2 rates[THREADS];
    // Queries and keys of two tokens in turn.
    threadgroup float4 staged[2 * PARTS * PITCH];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const uint slabs = (params.value_dim + COLUMNS - 1) / COLUMNS;
    const uint head = index / slabs % params.value_heads;
    const uint place = index / slabs / params.value_heads;
    const uint lane = local % COLUMNS;
    const uint part = local / COLUMNS;
    const uint column = index % slabs * COLUMNS + lane;
    const bool exists = column < params.value_dim;
    const uint2 run = runs[place];
    const uint sequence = min(run.x, params.sequences - 1u);
    const uint own = (sequence * params.value_heads + head) * params.key_dim * params.value_dim + column;
    // Numbers beyond the key stay zeros, like those of a query and key: a condition for each would take registers in all of the loop.
    float held[HELD];
    for (uint i = 0; i < HELD; ++i) held[i] = 0.0f;
    if (exists && run.y > 0) {
        for (uint i = 0; i < HELD; ++i) {
            const uint k = i * PARTS + part;
            if (k < params.key_dim) held[i] = state[own + k * params.value_dim];
        }
    }
    const uint width = params.key_heads * params.key_dim;
    const uint stride = 2 * width + params.value_heads * params.value_dim;
    const uint first = place * params.run;
    const uint key_head = params.tiled != 0 ? head % params.key_heads : head / (params.value_heads / params.key_heads);
    const uint query = key_head * params.key_dim;
    const uint of_value = 2 * width + head * params.value_dim + min(column, params.value_dim - 1u);
    const float head_decay = decay[head];
    const float head_bias = dt_bias[head];
    const bool stages = local < PARTS * PAIRS;
    const uint stage = local % PARTS * PITCH + local / PARTS;
    float4 next = float4(0.0f);
    // Indices would be computed before the loop, and take registers in it.
    threadgroup const float* column_products = products + lane;
    threadgroup const float* column_reads = reads + lane;
    if (stages) staged[stage] = staged_pair(params, mixed, first * stride + query, local);
    float next_value = mixed[first * stride + of_value];
    for (uint t = 0; t < params.run; ++t) {
        if (t % THREADS == 0) {
            if (t + local < params.run) {
                const uint rate = (first + t + local) * params.value_heads + head;
                // softplus.metal has the function.
                const float kept = exp_negative(head_decay * forward(alpha[rate] + head_bias));
                rates[local] = float2(kept, sigmoid(beta[rate]));
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        const float value = next_value;
        const uint following = (first + min(t + 1u, params.run - 1u)) * stride;
        if (stages) next = staged_pair(params, mixed, following + query, local);
        next_value = mixed[following + of_value];
        const float2 rate = rates[t % THREADS];
        threadgroup const float4* line = staged + (t % 2 * PARTS + part) * PITCH;
        float2 square = float2(0.0f);
        float product = 0.0f;
        for (uint i = 0; i < PAIRS; ++i) {
            const float4 pairs = line[i];
            square = fma(pairs.xy, pairs.xy, square);
            held[2 * i] *= rate.x;
            product = fma(held[2 * i], pairs.y, product);
            square = fma(pairs.zw, pairs.zw, square);
            held[2 * i + 1] *= rate.x;
            product = fma(held[2 * i + 1], pairs.w, product);
        }
        products[local] = product;
        squares[local] = square;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        product = 0.0f;
        square = float2(0.0f);
        for (uint p = 0; p < PARTS; ++p) {
            product += column_products[p * COLUMNS];
            square += squares[p * COLUMNS];
        }
        const float of_query = params.scale / sqrt(square.x + EPS);
        const float of_key = 1.0f / sqrt(square.y + EPS);
        const float change = exists ? (value - product * of_key) * rate.y * of_key : 0.0f;
        float read = 0.0f;
        for (uint i = 0; i < PAIRS; ++i) {
            const float4 pairs = line[i];
            held[2 * i] = fma(pairs.y, change, held[2 * i]);
            read = fma(held[2 * i], pairs.x, read);
            held[2 * i + 1] = fma(pairs.w, change, held[2 * i + 1]);
            read = fma(held[2 * i + 1], pairs.z, read);
        }
        reads[local] = read;
        if (stages) staged[(t + 1) % 2 * PARTS * PITCH + stage] = next;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (part == 0 && exists) {
            read = 0.0f;
            for (uint p = 0; p < PARTS; ++p) read += column_reads[p * COLUMNS];
            y[((first + t) * params.value_heads + head) * params.value_dim + column] = read * of_query;
        }
    }
    if (exists) {
        for (uint i = 0; i < HELD; ++i) {
            const uint k = i * PARTS + part;
            if (k < params.key_dim) state[own + k * params.value_dim] = held[i];
        }
    }
}
