// Products of tiles on the simdgroup matrices, for attention without a matrix of scores. A threadgroup has ROWS rows of one matrix and goes through another,
// COLUMNS of its rows at a time: these are the columns of a tile of scores. Each of its eight SIMD-groups has eight rows, of scores and of outputs.
// In a SIMD-group's part of a tile that is in threadgroup memory, lane l has row l / 4, and of its columns those that lie 4 apart, from l % 4 on.
// The order in which eight products are added is the device's.
using metal::make_filled_simdgroup_matrix; using metal::simdgroup_float8x8; using metal::simdgroup_load; using metal::simdgroup_multiply_accumulate;
using metal::simdgroup_store;
#define BLOCKS (COLUMNS / 8u)
#define ACROSS (WIDTH / 8u)
// The numbers of a row that a lane has.
#define OWN (COLUMNS / 4u)

// What a threadgroup makes of an output: ROWS rows of a head, from row0 on, and 2·WIDTH columns, from d0 on. Of wider heads, several threadgroups
// compute the scores, each for its columns.
struct Strip { uint head, row0, d0; };

static inline Strip strip_of(uint tokens, uint dim, uint index) {
    const uint tiles = (tokens + ROWS - 1u) / ROWS;
    const uint strips = (dim + 2u * WIDTH - 1u) / (2u * WIDTH);
    return Strip{index / (tiles * strips), index / strips % tiles * ROWS, index % strips * (2u * WIDTH)};
}

// A matrix of a head. Rows and columns that it has not are 0.
struct Matrix {
    device const X* from;
    uint rows, columns;
    float operator()(uint row, uint column) const {
        return row < rows && column < columns ? float(from[row * columns + column]) : 0.0f;
    }
};

// What is added to an element of an output, or takes its place.
static inline void put_or_add(device X* to, uint at, float v, uint add) { to[at] = X(add != 0 ? float(to[at]) + v : v); }

// Leaves Σ a[row, l]·b[column, l] over l in `tile`, for rows from row0 and columns from column0 on.
static inline void scores(Matrix a, uint row0, Matrix b, uint column0, threadgroup float* staged, threadgroup float* tile, Ids ids) {
    simdgroup_float8x8 sums[BLOCKS];
    for (uint i = 0; i < BLOCKS; ++i) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint first = 0; first < a.columns; first += DEPTH) {
        // Neighboring threads read what lies side by side.
        for (uint i = ids.local; i < DEPTH * (ROWS + COLUMNS); i += THREADS) {
            const uint r = i / DEPTH, l = first + i % DEPTH;
            staged[r * SLICE + i % DEPTH] = r < ROWS ? a(row0 + r, l) : b(column0 + r - ROWS, l);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint l = 0; l < DEPTH; l += 8) {
            simdgroup_float8x8 rows;
            simdgroup_load(rows, staged + ids.subgroup * 8u * SLICE + l, SLICE);
            for (uint i = 0; i < BLOCKS; ++i) {
                simdgroup_float8x8 columns;
                simdgroup_load(columns, staged + (ROWS + 8u * i) * SLICE + l, SLICE, ulong2(0), true);
                simdgroup_multiply_accumulate(sums[i], rows, columns, sums[i]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < BLOCKS; ++i) simdgroup_store(sums[i], tile + 8u * i, PITCH);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// sums[row, d] += Σ tile[row, column]·b[column, d] over the tile's columns, for WIDTH of d from d0 on.
static inline void add_weighted(
    threadgroup const float* tile, Matrix b, uint column0, uint d0, threadgroup float* staged, thread simdgroup_float8x8* sums, Ids ids)
{
    for (uint first = 0; first < COLUMNS; first += DEPTH) {
        for (uint i = ids.local; i < DEPTH * WIDTH; i += THREADS) {
            staged[i / WIDTH * LINE + i % WIDTH] = b(column0 + first + i / WIDTH, d0 + i % WIDTH);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint l = 0; l < DEPTH; l += 8) {
            simdgroup_float8x8 weights;
            simdgroup_load(weights, tile + first + l, PITCH);
            for (uint i = 0; i < ACROSS; ++i) {
                simdgroup_float8x8 values;
                simdgroup_load(values, staged + l * LINE + 8u * i, LINE);
                simdgroup_multiply_accumulate(sums[i], weights, values, sums[i]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// All columns of a threadgroup: two times WIDTH, or fewer where the head ends.
static inline void add_all_weighted(
    threadgroup const float* tile, Matrix b, uint column0, uint d0, threadgroup float* staged, thread simdgroup_float8x8* sums, Ids ids)
{
    add_weighted(tile, b, column0, d0, staged, sums, ids);
    if (d0 + WIDTH < b.columns) add_weighted(tile, b, column0, d0 + WIDTH, staged, sums + ACROSS, ids);
}

static inline void clear(thread simdgroup_float8x8* sums) {
    for (uint i = 0; i < 2u * ACROSS; ++i) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

// Gives `store(row of eight, where in the head, number)` what has been added up, of the rows and columns that there are.
template <typename Store>
static inline void write(thread simdgroup_float8x8* sums, Strip own, uint tokens, uint dim, threadgroup float* staged, Store store, Ids ids) {
    threadgroup float* block = staged + ids.subgroup * 64u;
    for (uint i = 0; i < 2u * ACROSS; ++i) {
        simdgroup_store(sums[i], block, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = ids.lane; e < 64; e += 32) {
            const uint row = own.row0 + ids.subgroup * 8u + e / 8u;
            const uint d = own.d0 + 8u * i + e % 8u;
            if (row < tokens && d < dim) store(e / 8u, row * dim + d, block[e]);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
