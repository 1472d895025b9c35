// y[t, r] = (Σ_k x[t, k]·table[r, k]) · table_scale[r] · unit[t] on tensor cores for int8, added to y if `add` is not 0: the bits of
// dense_gemv_packed.wgsl, which says what is bound. A workgroup computes TILE_X rows × TILE_Y tokens, a subgroup DOWN × ACROSS matrices of SIDE × SIDE of
// them, each from three planes of x. DEPTH columns are in workgroup memory at a time, and those that follow are loaded while these are multiplied.
// WGSL has no matrices of int8.
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(push_constant) uniform Params { uint rows; uint tokens; uint blocks; uint add; } params;
layout(std430, set = 0, binding = 0) readonly buffer Table { uvec4 table[]; };
layout(std430, set = 0, binding = 1) readonly buffer TableScale { float table_scale[]; };
layout(std430, set = 0, binding = 2) readonly buffer X { uvec4 x[]; };
layout(std430, set = 0, binding = 3) readonly buffer Units { float units[]; };
layout(std430, set = 0, binding = 4) buffer Y { float y[]; };

// What is staged is addressed in units of V, of as many bytes as a matrix has columns, or sixteen.
#if COLUMNS < 16
#define V uvec2
#define WORDS_OF_V 2
#else
#define V uvec4
#define WORDS_OF_V 4
#endif
#define MATRIX(type, rows, columns, use) coopmat<type, gl_ScopeSubgroup, rows, columns, gl_MatrixUse##use>
#define ACCUMULATOR MATRIX(int, SIDE, SIDE, Accumulator)
#define EACH(i, count) [[unroll]] for (int i = 0; i < count; i++)

// Blocks of a line, a row or a plane of a token, that are staged, and units from one line to the next: sixteen bytes more than it has, so that eight lines
// meet no bank twice.
const int STEP = DEPTH / 16;
const int PITCH = (DEPTH / 4 + 4) / WORDS_OF_V;
const int LINES_OF_X = 3 * TILE_Y;
const int SUBGROUPS_ACROSS = TILE_X / (ACROSS * SIDE);
const int SUBGROUPS = TILE_Y / (DOWN * SIDE) * SUBGROUPS_ACROSS;
// Words from one token to the next of a subgroup's sums, of which it has three planes.
const int LINE = SIDE + 4;
const int SUMS = 3 * SIDE * LINE / WORDS_OF_V;
const int STAGED = (LINES_OF_X + TILE_X) * PITCH;

// Planes of tokens, then rows, as bytes; in the end each subgroup's sums.
shared V staged[STAGED > SUBGROUPS * SUMS ? STAGED : SUBGROUPS * SUMS];

// Blocks of x and of the table that a thread stages, and how many lines they are apart.
const int X_EACH = (LINES_OF_X * STEP + THREADS - 1) / THREADS;
const int ROWS_EACH = TILE_X * STEP / THREADS;
const int LINES_APART = THREADS / STEP;

// Loads a thread's share of the columns from the block `first` on. What is not there is read as something else: rows and tokens are not written, and of
// columns those of the table are 0 in STAGE.
#define LOAD(first) { \
    EACH(i, X_EACH) next_x[i] = x[min(x_at[i] + (first), x_end)]; \
    EACH(i, ROWS_EACH) next_rows[i] = table[min(rows_at + i * LINES_APART * params.blocks + (first), table_end)]; \
}

// Where threads have unequal shares of x.
#if 3 * TILE_Y * DEPTH / 16 % THREADS == 0
#define IF_OF_X(at)
#else
#define IF_OF_X(at) if (at < LINES_OF_X)
#endif

// Stages what was loaded from the block `first` on.
#define STAGE(first) { \
    uint mask = (first) + block < params.blocks ? 0xffffffffu : 0u; \
    EACH(i, X_EACH) IF_OF_X(line + i * LINES_APART) stage(line + i * LINES_APART, block, next_x[i]); \
    EACH(i, ROWS_EACH) stage(LINES_OF_X + line + i * LINES_APART, block, next_rows[i] & mask); \
}

void stage(const int to, const int part, const uvec4 bytes) {
    int at = to * PITCH + part * 4 / WORDS_OF_V;
#if COLUMNS < 16
    staged[at] = bytes.xy;
    staged[at + 1] = bytes.zw;
#else
    staged[at] = bytes;
#endif
}

int sum_at(const int word) { return int(staged[word / WORDS_OF_V][word % WORDS_OF_V]); }

// 2^16·high + 2^8·middle + low in a float: both terms of the last line are exact, so that their sum is rounded as it is, fused or not.
float rounded(const int high, const int middle, const int low) {
    int carried = ((middle & 0xff) << 8) + (low & 0xffff);
    int upper = high + (middle >> 8) + (low >> 16) + (carried >> 16);
    return float(upper >> 8) * 16777216.0 + float(((upper & 0xff) << 16) | (carried & 0xffff));
}

// A matrix of a subgroup from workgroup memory, where its sums lie from the word `start` on. Lanes are rows.
void store_sums(const int start, const uint first_token, const uint first_row) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < SIDE * SIDE; i += LANES) {
        uint token = first_token + i / SIDE, row = first_row + i % SIDE;
        if (row < params.rows && token < params.tokens) {
            int from = start + int(i / SIDE) * LINE + int(i % SIDE);
            float made = rounded(sum_at(from + 2 * SIDE * LINE), sum_at(from + SIDE * LINE), sum_at(from)) * table_scale[row] * units[token];
            uint at = token * params.rows + row;
            y[at] = params.add != 0 ? y[at] + made : made;
        }
    }
}

void main() {
    int local = int(gl_LocalInvocationIndex);
    int subgroup = int(gl_SubgroupID);
    // Eight tiles of rows at a time, for all tokens: what is read again is near.
    uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint group = tile / (8 * gl_NumWorkGroups.y);
    uint inside = tile % (8 * gl_NumWorkGroups.y);
    uint wide = min(8u, gl_NumWorkGroups.x - 8 * group);
    uint row0 = (8 * group + inside % wide) * TILE_X;
    uint token0 = inside / wide * TILE_Y;
    // The first output of a subgroup in the tile.
    int right = subgroup % SUBGROUPS_ACROSS * ACROSS * SIDE;
    int down = subgroup / SUBGROUPS_ACROSS * DOWN * SIDE;
    // What a thread stages. Lines of x are planes of TILE_Y tokens.
    int block = local % STEP, line = local / STEP;
    uint rows_at = (row0 + line) * params.blocks + block, table_end = params.rows * params.blocks - 1;
    uint x_at[X_EACH], x_end = params.tokens * 3 * params.blocks - 1;
    EACH(i, X_EACH) {
        int of_x = line + i * LINES_APART;
        x_at[i] = (min(token0 + of_x % TILE_Y, params.tokens - 1) * 3 + of_x / TILE_Y) * params.blocks + block;
    }
    uvec4 next_x[X_EACH], next_rows[ROWS_EACH];
    LOAD(0)

    ACCUMULATOR sums[3][DOWN][ACROSS];
    EACH(p, 3) EACH(i, DOWN) EACH(j, ACROSS) sums[p][i][j] = ACCUMULATOR(0);
    STAGE(0)
    barrier();

    [[dont_unroll]] for (uint first = 0; first < params.blocks; first += STEP) {
        LOAD(first + STEP)
        [[unroll]] for (int k = 0; k < DEPTH; k += COLUMNS) {
            int column = k / 4 / WORDS_OF_V;
            MATRIX(int8_t, COLUMNS, SIDE, B) b[ACROSS];
            EACH(j, ACROSS) coopMatLoad(b[j], staged, (LINES_OF_X + right + j * SIDE) * PITCH + column, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            EACH(p, 3) EACH(i, DOWN) {
                MATRIX(int8_t, SIDE, COLUMNS, A) a;
                coopMatLoad(a, staged, (p * TILE_Y + down + i * SIDE) * PITCH + column, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                EACH(j, ACROSS) sums[p][i][j] = coopMatMulAdd(a, b[j], sums[p][i][j]);
            }
        }
        barrier();
        STAGE(first + STEP)
        barrier();
    }

    int start = subgroup * SUMS;
    EACH(i, DOWN) EACH(j, ACROSS) {
        EACH(p, 3) coopMatStore(sums[p][i][j], staged, start + p * SIDE * LINE / WORDS_OF_V, LINE / WORDS_OF_V, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        store_sums(start * WORDS_OF_V, token0 + down + i * SIDE, row0 + right + j * SIDE);
        subgroupBarrier();
    }
}
