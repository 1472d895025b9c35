// The gated delta rule, token by token: S = g·S + k (β (v - (g·S)ᵀ k))ᵀ and y = Sᵀ q · scale. One threadgroup per run, value head and COLUMNS columns of
// its state, which it holds in registers: PARTS threads share a column. Shapes: wgsl/recurrent/gated_delta.wgsl.
struct Params { uint groups, run, sequences, key_heads, value_heads, key_dim, value_dim, tiled; float scale; };

// Added to the sum of squares of a query or a key.
#define EPS 1e-6f

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
    // Shares of the squares of the query, and of the key, which are the same for all columns.
    threadgroup float2 squares[PARTS];
    const uint index = flat_group(group, groups);
    if (index >= params.groups) return;
    const uint slabs = (params.value_dim + COLUMNS - 1) / COLUMNS;
    const uint head = index / slabs % params.value_heads;
    const uint place = index / slabs / params.value_heads;
    const uint lane = local % COLUMNS;
    const uint part = local / COLUMNS;
    const uint column = index % slabs * COLUMNS + lane;
    const bool exists = column < params.value_dim;
    const uint keys = params.key_heads * params.key_dim;
    const uint key_head = params.tiled != 0 ? head % params.key_heads : head / (params.value_heads / params.key_heads);
    const uint2 run = runs[place];
    const uint sequence = min(run.x, params.sequences - 1u);
    device float* own = state + (sequence * params.value_heads + head) * params.key_dim * params.value_dim + column;
    float held[HELD];
    for (uint i = 0; i < HELD; ++i) {
        const uint k = i * PARTS + part;
        held[i] = exists && run.y > 0 && k < params.key_dim ? own[k * params.value_dim] : 0.0f;
    }
    for (uint t = 0; t < params.run; ++t) {
        const uint token = place * params.run + t;
        device const float* row = mixed + token * (2 * keys + params.value_heads * params.value_dim);
        device const float* query = row + key_head * params.key_dim;
        device const float* key = query + keys;
        const uint rate = token * params.value_heads + head;
        // softplus.metal has the function.
        const float kept = exp_negative(decay[head] * forward(alpha[rate] + dt_bias[head]));
        float2 square = float2(0.0f);
        float product = 0.0f;
        for (uint i = 0; i < HELD; ++i) {
            const uint k = i * PARTS + part;
            if (k < params.key_dim) {
                const float2 pair = float2(query[k], key[k]);
                square = fma(pair, pair, square);
                held[i] *= kept;
                product = fma(held[i], pair.y, product);
            }
        }
        products[local] = product;
        if (lane == 0) squares[part] = square;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        product = 0.0f;
        square = float2(0.0f);
        for (uint p = 0; p < PARTS; ++p) {
            product += products[p * COLUMNS + lane];
            square += squares[p];
        }
        const float of_query = params.scale / sqrt(square.x + EPS);
        const float of_key = 1.0f / sqrt(square.y + EPS);
        float change = 0.0f;
        if (exists) {
            const float value = row[2 * keys + head * params.value_dim + column];
            change = (value - product * of_key) * sigmoid(beta[rate]) * of_key;
        }
        float read = 0.0f;
        for (uint i = 0; i < HELD; ++i) {
            const uint k = i * PARTS + part;
            if (k < params.key_dim) {
                held[i] = fma(key[k], change, held[i]);
                read = fma(held[i], query[k], read);
            }
        }
        reads[local] = read;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (part == 0 && exists) {
            read = 0.0f;
            for (uint p = 0; p < PARTS; ++p) read += reads[p * COLUMNS + lane];
            y[(token * params.value_heads + head) * params.value_dim + column] = read * of_query;
        }
    }
    for (uint i = 0; i < HELD; ++i) {
        const uint k = i * PARTS + part;
        if (exists && k < params.key_dim) own[k * params.value_dim] = held[i];
    }
}
