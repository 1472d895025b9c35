// y[t, r] = Σ_k x[t, k]·table[r, k] · table_scale[r] for few tokens t, on top of y if `add` is not 0. table is [rows, blocks] blocks of 16 bytes,
// which dense_*.metal unpacks; x has as many elements per row, padded with zeros as the table is, and lies as wgsl/transformer/dense_gemv.wgsl says; y is
// [tokens, rows]. A threadgroup computes TILE_X rows × TILE_Y tokens, a SIMD-group ROWS rows: each lane takes every 32nd block of them.
struct Params { uint rows, tokens, blocks, add; };

// Tokens that do not exist are read as the last one, and not written.
static inline uint x_quad(constant Params& params, uint token, uint block, uint q) {
    const uint t = min(token, params.tokens - 1u);
    return TILE_Y == 1 ? (t * params.blocks + block) * QUADS + q : (t * QUADS + q) * params.blocks + block;
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void dense_gemv(
    constant Params& params          [[buffer(0)]],
    device const uint4* table        [[buffer(1)]],
    device const float* table_scale  [[buffer(2)]],
    device const float4* x           [[buffer(3)]],
    device float* y                  [[buffer(4)]],
    uint3 group   [[threadgroup_position_in_grid]],
    uint lane     [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]])
{
    const uint token0 = group.y * TILE_Y;
    const uint row0 = group.x * TILE_X + subgroup * ROWS;
    float acc[ROWS][TILE_Y];
    for (uint r = 0; r < ROWS; ++r) {
        for (uint c = 0; c < TILE_Y; ++c) acc[r][c] = 0.0f;
    }
    for (uint i = lane; i < params.blocks; i += 32) {
        // Rows that do not exist are read as the last one, and not written.
        uint4 w[ROWS];
        for (uint r = 0; r < ROWS; ++r) w[r] = table[min(row0 + r, params.rows - 1u) * params.blocks + i];
        for (uint q = 0; q < QUADS; ++q) {
            float4 own[ROWS];
            for (uint r = 0; r < ROWS; ++r) own[r] = unpack4(w[r], q);
            for (uint c = 0; c < TILE_Y; ++c) {
                const float4 a = x[x_quad(params, token0 + c, i, q)];
                for (uint r = 0; r < ROWS; ++r) acc[r][c] += dot(own[r], a);
            }
        }
    }
    for (uint c = 0; c < TILE_Y; ++c) {
        if (token0 + c >= params.tokens) continue;
        // Lane r takes the sum of row r, so that all rows are written, or added to, at once.
        float own = 0.0f;
        for (uint r = 0; r < ROWS; ++r) {
            const float sum = simd_sum(acc[r][c]);
            own = lane == r ? sum : own;
        }
        const uint row = row0 + lane;
        if (lane >= ROWS || row >= params.rows) continue;
        const uint at = (token0 + c) * params.rows + row;
        const float product = own * table_scale[row];
        y[at] = params.add != 0 ? y[at] + product : product;
    }
}
