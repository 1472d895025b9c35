// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0, on tensor cores for int8; for many tokens t. codes is
// [rows, words] words of sixteen codes, of which rows have whole quads; x is [tokens, words] vectors of sixteen int8 activations, y [tokens, rows].
// A workgroup computes TILE_X rows × TILE_Y tokens, a subgroup DOWN × ACROSS matrices of SIDE × SIDE of them, from matrices of SIDE × COLUMNS. DEPTH
// columns are in workgroup memory at a time, and those that follow are loaded while these are multiplied. TEAMS of subgroups share these columns and
// add up their sums. Sums are of 32 bits, as in every kernel for int8.
// WGSL has no matrices of int8.
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(push_constant) uniform Params { uint rows; uint tokens; uint words; uint add; } params;
// Without `readonly`, scales are loaded and inverted for every output anew.
layout(std430, set = 0, binding = 0) readonly buffer Codes { uvec4 codes[]; };
layout(std430, set = 0, binding = 1) readonly buffer WScale { float w_scale[]; };
layout(std430, set = 0, binding = 2) readonly buffer X { uvec4 x[]; };
layout(std430, set = 0, binding = 3) readonly buffer XScale { float x_scale[]; };
layout(std430, set = 0, binding = 4) readonly buffer XSum { ivec2 x_sum[]; };

// What is staged is addressed in units of V, of as many bytes as a matrix has columns, or sixteen.
#if COLUMNS < 16
#define V uvec2
#define WORDS_OF_V 2
#else
#define V uvec4
#define WORDS_OF_V 4
#endif
// Words of codes of a line, a row or a token, that are staged, and units from one line to the next: sixteen bytes more than it has, so that eight lines
// meet no bank twice.
const int STEP = DEPTH / 16;
const int PITCH = (DEPTH / 4 + 4) / WORDS_OF_V;
const int SUBGROUPS_ACROSS = TILE_X / (ACROSS * SIDE);
const int SUBGROUPS = TILE_Y / (DOWN * SIDE) * SUBGROUPS_ACROSS;
// Words, and a multiple of sixteen bytes more, from one token to the next of a subgroup's outputs.
const int LINE = ACROSS * SIDE + 4;
const int STAGED = (TILE_X + TILE_Y) * PITCH;
const int SUMS = TEAMS > 1 ? SUBGROUPS * DOWN * ACROSS * SIDE * SIDE / WORDS_OF_V : 0;

// Tokens, then rows, as bytes; in the end the sums of a team, or each subgroup's outputs, which are no more.
shared V staged[STAGED > SUMS ? STAGED : SUMS];

// Quads of words of codes, and vectors of activations, that a thread stages, and how many lines they are apart.
const int QUADS = STEP / 4;
const int QUADS_EACH = TILE_X * QUADS / THREADS;
const int VECTORS_EACH = TILE_Y * STEP / THREADS;
const int QUAD_LINES = THREADS / QUADS;
const int VECTOR_LINES = THREADS / STEP;

// Loads a thread's share of the columns from the word `first` on. What is not there is read as something else: rows and tokens are not written, and of
// columns the codes are 0 in STAGE.
#define LOAD(first) { \
    EACH(i, QUADS_EACH) next_codes[i] = codes[min(quads_at + i * QUAD_LINES * (params.words / 4) + (first) / 4, codes_end)]; \
    EACH(i, VECTORS_EACH) next_x[i] = x[min(vectors_at + i * VECTOR_LINES * params.words + (first), x_end)]; \
}

// Stages what was loaded from the word `first` on.
#define STAGE(first) { \
    uint mask = (first) + 4 * quad < params.words ? 0x03030303u : 0u; \
    EACH(i, QUADS_EACH) stage_codes(TILE_Y + quad_line + i * QUAD_LINES, 4 * quad, next_codes[i], mask); \
    EACH(i, VECTORS_EACH) stage(vector_line + i * VECTOR_LINES, word, next_x[i]); \
}

void stage(const int line, const int word, const uvec4 bytes) {
    int at = line * PITCH + word * 4 / WORDS_OF_V;
#if COLUMNS < 16
    staged[at] = bytes.xy;
    staged[at + 1] = bytes.zw;
#else
    staged[at] = bytes;
#endif
}

// The bytes of a word have the first codes of four quads, then the second ones, and so on.
void stage_codes(const int line, const int word, const uvec4 words, const uint mask) {
    EACH(e, 4) stage(line, word + e, uvec4(words[e], words[e] >> 2, words[e] >> 4, words[e] >> 6) & mask);
}

#if WIDE == 2
#define INTS ivec2
#else
#define INTS int
#endif

FLOATS load_scales(const uint row) {
#if WIDE == 2
    return vec2(w_scale[min(row, params.rows - 1)], w_scale[min(row + 1, params.rows - 1)]);
#else
    return w_scale[min(row, params.rows - 1)];
#endif
}

// Codes are value + 1, so the sum of the activations is subtracted.
void finish(const bool adds, const INTS sums, const int x_of_token, const FLOATS beta, const float scale, const float inverse, const FLOATS before,
            const uint token, const uint row) {
    FLOATS made = quotient_by(FLOATS(sums - x_of_token) * beta, scale, inverse);
    store_outputs(token, row, params.tokens, params.rows, adds ? before + made : made);
}

// SIDE tokens of a subgroup from workgroup memory, where they lie from `start` on. Lanes are rows.
void store_staged(const int start, const uint first_token, const uint first_row) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < SIDE * ACROSS * SIDE; i += LANES) {
        uint line = i / (ACROSS * SIDE), column = i % (ACROSS * SIDE);
        uint token = first_token + line, row = first_row + column;
        if (row < params.rows && token < params.tokens) {
            uint from = start + line * LINE + column;
            int sum = int(staged[from / WORDS_OF_V][from % WORDS_OF_V]) - x_sum[token].x;
            float made = exact_quotient(float(sum) * w_scale[row], x_scale[token]);
            uint at = token * params.rows + row;
            OUTPUT(at) = Y(params.add != 0 ? float(OUTPUT(at)) + made : made);
        }
    }
}

// Stores the outputs of a lane, from the token `first` on and the row `row`. Loads may not pass stores: one by one, those of what is added to would take
// as long as all else.
#define DIRECT(adds) EACH(i, DOWN) { \
    uint first = token0 + down + i * SIDE + lane_token(); \
    FLOATS before[SLICES][ACROSS * BLOCKS]; \
    EACH(h, SLICES) EACH(j, ACROSS * BLOCKS) before[h][j] = FLOATS(0.0); \
    if (adds) \
        EACH(h, SLICES) EACH(j, ACROSS * BLOCKS) \
            before[h][j] = load_outputs(first + h * TOKENS_APART, row + j * ROWS_APART, params.tokens, params.rows); \
    EACH(h, SLICES) { \
        uint token = first + h * TOKENS_APART; \
        float scale = x_scale[min(token, params.tokens - 1)]; \
        float inverse = reciprocal(scale); \
        int x_of_token = x_sum[min(token, params.tokens - 1)].x; \
        EACH(j, ACROSS * BLOCKS) \
            finish(adds, INTS(ELEMENTS(sums[i][j / BLOCKS], (h * BLOCKS + j % BLOCKS) * WIDE)), x_of_token, beta[j], scale, inverse, before[h][j], token, \
                   row + j * ROWS_APART); \
    } \
}

void main() {
    int local = int(gl_LocalInvocationIndex);
    int subgroup = int(gl_SubgroupID) % SUBGROUPS;
    int team = int(gl_SubgroupID) / SUBGROUPS;
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
    // What a thread stages.
    int quad = local % QUADS, quad_line = local / QUADS;
    int word = local % STEP, vector_line = local / STEP;
    uint quads_at = (row0 + quad_line) * (params.words / 4) + quad, codes_end = params.rows * (params.words / 4) - 1;
    uint vectors_at = (token0 + vector_line) * params.words + word, x_end = params.tokens * params.words - 1;
    uvec4 next_codes[QUADS_EACH], next_x[VECTORS_EACH];
    LOAD(0)

    // Outputs go straight to memory if lanes have the elements that are expected, whole groups of rows, and scales with which no quotient is subnormal,
    // infinite or -0.
    bool usual = params.rows % WIDE == 0;
    for (int i = local; i < TILE_X; i += THREADS) usual = is_usual(w_scale[min(row0 + i, params.rows - 1)]) && usual;
    for (int i = local; i < TILE_Y; i += THREADS) usual = is_usual(x_scale[min(token0 + i, params.tokens - 1)]) && usual;
    write_places(usual);

    ACCUMULATOR sums[DOWN][ACROSS];
    EACH(i, DOWN) EACH(j, ACROSS) sums[i][j] = ACCUMULATOR(0);
    STAGE(0)
    barrier();
    bool direct = as_expected();

    [[dont_unroll]] for (uint first = 0; first < params.words; first += STEP) {
        LOAD(first + STEP)
        [[unroll]] for (int k = 0; k < DEPTH / TEAMS; k += COLUMNS) {
            int column = (team * (DEPTH / TEAMS) + k) / 4 / WORDS_OF_V;
            MATRIX(int8_t, COLUMNS, SIDE, B) b[ACROSS];
            MATRIX(int8_t, SIDE, COLUMNS, A) a[DOWN];
            EACH(j, ACROSS) coopMatLoad(b[j], staged, (TILE_Y + right + j * SIDE) * PITCH + column, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            EACH(i, DOWN) coopMatLoad(a[i], staged, (down + i * SIDE) * PITCH + column, PITCH, gl_CooperativeMatrixLayoutRowMajor);
            EACH(i, DOWN) EACH(j, ACROSS) sums[i][j] = coopMatMulAdd(a[i], b[j], sums[i][j]);
        }
        barrier();
        STAGE(first + STEP)
        barrier();
    }

#if TEAMS > 1
    // The first team adds the sums of the others, one after another.
    const int SUM_LINE = ACROSS * SIDE / WORDS_OF_V;
    EACH(other, TEAMS - 1) {
        if (team == other + 1)
            EACH(i, DOWN) EACH(j, ACROSS)
                coopMatStore(sums[i][j], staged, (subgroup * DOWN + i) * SIDE * SUM_LINE + j * SIDE / WORDS_OF_V, SUM_LINE, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        if (team == 0)
            EACH(i, DOWN) EACH(j, ACROSS) {
                ACCUMULATOR more;
                coopMatLoad(more, staged, (subgroup * DOWN + i) * SIDE * SUM_LINE + j * SIDE / WORDS_OF_V, SUM_LINE, gl_CooperativeMatrixLayoutRowMajor);
                sums[i][j] = sums[i][j] + more;
            }
        barrier();
    }
    if (team != 0) return;
#endif

    if (direct) {
        uint row = row0 + right + lane_row();
        FLOATS beta[ACROSS * BLOCKS];
        EACH(j, ACROSS * BLOCKS) beta[j] = load_scales(row + j * ROWS_APART);
        // Two texts, since tests for each row of matrices take 4 % of the time. Where lanes have no neighbors, tests alone run this.
#if WIDE == 2
        if (params.add != 0) { DIRECT(true) } else { DIRECT(false) }
#else
        DIRECT(params.add != 0)
#endif
        return;
    }
    // By way of workgroup memory.
    int start = subgroup * SIDE * LINE;
    EACH(i, DOWN) {
        EACH(j, ACROSS) coopMatStore(sums[i][j], staged, (start + j * SIDE) / WORDS_OF_V, LINE / WORDS_OF_V, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        store_staged(start, token0 + down + i * SIDE, row0 + right);
        subgroupBarrier();
    }
}
