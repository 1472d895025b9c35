// Products of tiles, for attention without a matrix of scores; see wgsl/transformer/flash_attention_tiles.wgsl. A matrix has `tokens` rows of `dim`
// numbers. What a thread has of a tile of scores are four rows of each of its two columns.

static inline bool sees(uint tokens, uint causal, uint query, uint key) {
    return query < tokens && key < tokens && (causal == 0 || key <= query);
}

// Σ a[row, l]·b[column, l] over l, in its order, for rows from row0 and columns from column0 on.
static inline void scores(
    device const X* a, uint row0, device const X* b, uint column0, uint tokens, uint dim, threadgroup float* staged, uint local, thread float4* sums)
{
    const uint across = local % 16u;
    const uint down = local / 16u;
    float4 first_column = float4(0.0f);
    float4 second_column = float4(0.0f);
    for (uint first = 0; first < dim; first += DEPTH) {
        // Neighbouring threads read what lies side by side.
        for (uint i = local; i < DEPTH * (ROWS + COLUMNS); i += THREADS) {
            const uint r = i / DEPTH;
            const uint l = first + i % DEPTH;
            float v = 0.0f;
            if (r < ROWS) {
                if (row0 + r < tokens && l < dim) v = float(a[(row0 + r) * dim + l]);
            } else {
                const uint column = column0 + r - ROWS;
                if (column < tokens && l < dim) v = float(b[column * dim + l]);
            }
            staged[i % DEPTH * SLICE + r] = v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint l = 0; l < DEPTH; ++l) {
            threadgroup const float* of_a = staged + l * SLICE + 4u * down;
            threadgroup const float* of_b = staged + l * SLICE + ROWS + across;
            const float4 rows = float4(of_a[0], of_a[1], of_a[2], of_a[3]);
            first_column = fma(rows, float4(of_b[0]), first_column);
            second_column = fma(rows, float4(of_b[16]), second_column);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sums[0] = first_column;
    sums[1] = second_column;
}

// Puts a thread's part of a tile into `weights`, column by column.
static inline void put(thread const float4* tile, threadgroup float* weights, uint local) {
    for (uint c = 0; c < 2; ++c) {
        threadgroup float* to = weights + (local % 16u + 16u * c) * PITCH + local / 16u * 4u;
        for (uint r = 0; r < 4; ++r) to[r] = tile[c][r];
    }
}

// sums[row, d] += Σ weights[row, column]·b[column, d] over the tile's columns, in their order, for WIDTH of d from d0 on.
static inline void add_weighted(
    device const X* b, uint column0, uint d0, uint tokens, uint dim, threadgroup const float* weights, threadgroup float* staged, uint local,
    thread float4* sums)
{
    const uint across = local % 16u;
    const uint down = local / 16u;
    for (uint first = 0; first < COLUMNS; first += DEPTH) {
        for (uint i = local; i < DEPTH * WIDTH; i += THREADS) {
            const uint column = column0 + first + i / WIDTH;
            const uint d = d0 + i % WIDTH;
            staged[i / WIDTH * SLICE + i % WIDTH] = column < tokens && d < dim ? float(b[column * dim + d]) : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint l = 0; l < DEPTH; ++l) {
            threadgroup const float* at = weights + (first + l) * PITCH + 4u * down;
            threadgroup const float* of_b = staged + l * SLICE + across;
            const float4 weight = float4(at[0], at[1], at[2], at[3]);
            for (uint c = 0; c < 4; ++c) sums[c] = fma(weight, float4(of_b[16u * c]), sums[c]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Writes `factor` times the sums of `add_weighted` to y, or adds it.
static inline void write(
    device X* y, uint row0, uint d0, uint tokens, uint dim, uint add, float factor, thread const float4* sums, uint local)
{
    for (uint c = 0; c < 4; ++c) {
        const uint d = d0 + local % 16u + 16u * c;
        for (uint r = 0; r < 4; ++r) {
            const uint row = row0 + local / 16u * 4u + r;
            if (row >= tokens || d >= dim) continue;
            const float v = factor * sums[c][r];
            y[row * dim + d] = X(add != 0 ? float(y[row * dim + d]) + v : v);
        }
    }
}
