// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, on tensor cores for
// int8; for many tokens t, whose activations are in block floating point as two planes of bytes (wgsl/bitnet/block_float_store_bytes.wgsl). A block's sum is an
// integer; it is scaled, which rounds, and these are added in order: bit-identical in every kernel. codes is [rows, words] words of sixteen codes, y
// [tokens, rows]. A workgroup computes TILE_X rows × TILE_Y tokens, a subgroup DOWN × ACROSS matrices of SIDE × SIDE of them, from matrices of SIDE × COLUMNS.
// A block is in workgroup memory at a time, and the one that follows is loaded while it is multiplied.
// WGSL has no matrices of int8. A part before says which tokens a workgroup has, and which matrix they meet (matrix_of_all.comp, matrix_of_tile.comp).
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000)
layout(std430, set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(std430, set = 0, binding = 1) readonly buffer Codes { uint codes[]; };
layout(std430, set = 0, binding = 2) readonly buffer WScale { float w_scale[]; };
layout(std430, set = 0, binding = 3) readonly buffer Units { vec2 units[]; };

// What is staged is addressed in units of V, of as many bytes as a matrix has columns, or sixteen.
#if COLUMNS < 16
#define V uvec2
#define WORDS_OF_V 2
#else
#define V uvec4
#define WORDS_OF_V 4
#endif
// Words of codes of a line, a row or a plane of a token, that are staged, and units from one line to the next: sixteen bytes more than it has, so that
// eight lines meet no bank twice.
const int WORDS = DEPTH / 16;
const int PITCH = (DEPTH / 4 + 4) / WORDS_OF_V;
const int SUBGROUPS_ACROSS = TILE_X / (ACROSS * SIDE);
// Words, and sixteen bytes more, from one token to the next of a subgroup's outputs.
const int LINE = ACROSS * SIDE + 4;
const int STAGED = (TILE_X + 2 * TILE_Y) * PITCH;
const int STORED = THREADS / LANES * SIDE * LINE / WORDS_OF_V;
const int ELEMENTS_EACH = SIDE * SIDE / LANES;

// Rows, then high bytes of tokens, then low ones; in the end each subgroup's outputs.
shared V staged[STAGED > STORED ? STAGED : STORED];
// The bits of what a block's sums are scaled by: of rows, then of tokens.
shared int scales[TILE_X + TILE_Y];
// What is added to a token's sums of codes, which are value + 1, times bytes: OFFSET less the sum of its activations.
shared int added[TILE_Y];

// The bits of 1.5·2^23: an integer of up to 22 bits and a sign, added to these, is the bits of that float and it. A conversion takes a GPU several times as long.
const int OFFSET = 0x4b400000;

const int WORDS_EACH = TILE_X * WORDS / THREADS;
const int VECTORS_EACH = 2 * TILE_Y * WORDS / THREADS;
const int SCALES_EACH = (TILE_X + TILE_Y + THREADS - 1) / THREADS;

// Loads a thread's share of a block, and of what it is scaled by; of the last one again beyond it.
#define LOAD(number) { \
    uint b = min(number, params.blocks - 1); \
    EACH(i, WORDS_EACH) next_codes[i] = codes[rows_of[i] + min(b * params.block_words + part, params.words - 1)]; \
    EACH(i, VECTORS_EACH) next_x[i] = x[tokens_of[i] + b * params.block_words]; \
    EACH(i, SCALES_EACH) { \
        int at = local + i * THREADS; \
        if (at < TILE_X) next_scales[i].x = w_scale[scales_of[i] + b / params.group_blocks]; \
        else next_scales[i] = units[scales_of[i] + b]; \
    } \
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

void stage_scale(const int at, const vec2 scale) {
    if (at < TILE_X) scales[at] = floatBitsToInt(scale.x);
    if (at < TILE_X || at >= TILE_X + TILE_Y) return;
    // A sum that is not finite is of activations that are not.
    bool finite = (floatBitsToUint(scale.y) & 0x7fffffffu) < 0x7f800000u;
    scales[at] = floatBitsToInt(finite ? scale.x : NOT_A_NUMBER);
    added[at - TILE_X] = finite ? OFFSET - int(scale.y) : 0;
}

// Stages what was loaded.
#define STAGE { \
    EACH(i, WORDS_EACH) { \
        uint w = next_codes[i]; \
        stage((local + i * THREADS) / WORDS, local % WORDS, uvec4(w, w >> 2, w >> 4, w >> 6) & 0x03030303u); \
    } \
    EACH(i, VECTORS_EACH) { \
        int vector = local + i * THREADS; \
        stage(TILE_X + vector / WORDS % 2 * TILE_Y + vector / (2 * WORDS), local % WORDS, next_x[i] & mask); \
    } \
    EACH(i, SCALES_EACH) stage_scale(local + i * THREADS, next_scales[i]); \
}

// Multiplies a block's rows with a plane of tokens, whose lines begin at `first`. Blocks that are shorter have zeros: to ask for each matrix takes a
// third more time.
#define MULTIPLY(first) \
    [[unroll]] for (int k = 0; k < DEPTH; k += COLUMNS) { \
        MATRIX(int8_t, COLUMNS, SIDE, B) b[ACROSS]; \
        MATRIX(int8_t, SIDE, COLUMNS, A) a[DOWN]; \
        EACH(j, ACROSS) coopMatLoad(b[j], staged, (right + j * SIDE) * PITCH + k / 4 / WORDS_OF_V, PITCH, gl_CooperativeMatrixLayoutColumnMajor); \
        EACH(i, DOWN) coopMatLoad(a[i], staged, (first + down + i * SIDE) * PITCH + k / 4 / WORDS_OF_V, PITCH, gl_CooperativeMatrixLayoutRowMajor); \
        EACH(i, DOWN) EACH(j, ACROSS) sums[i][j] = coopMatMulAdd(a[i], b[j], sums[i][j]); \
    }

// Tokens are compared with how many there are before these are loaded or stored.
const uint ANY = 0xffffffffu;

// SIDE tokens of a subgroup from workgroup memory, where they lie from `start` on. Lanes are rows.
void store_staged(const int start, const uint first, const uint tokens, const uint row0) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < SIDE * ACROSS * SIDE; i += LANES) {
        uint line = i / (ACROSS * SIDE), column = i % (ACROSS * SIDE);
        uint token = first + line, row = row0 + column;
        if (row < params.n && token < tokens) {
            uint from = start + line * LINE + column;
            float total = has_matrix() ? uintBitsToFloat(staged[from / WORDS_OF_V][from % WORDS_OF_V]) : NOT_A_NUMBER;
            uint at = output_row(token) * params.n + row;
            OUTPUT(at) = Y(params.add != 0 ? float(OUTPUT(at)) + total : total);
        }
    }
}

void main() {
    int local = int(gl_LocalInvocationIndex);
    if (is_idle()) return;
    int row0 = int(gl_WorkGroupID.x) * TILE_X;
    uint tokens = tokens_left(), matrix = first_row();
    int subgroup = int(gl_SubgroupID);
    // The first output of a subgroup in the tile.
    int right = subgroup % SUBGROUPS_ACROSS * ACROSS * SIDE;
    int down = subgroup / SUBGROUPS_ACROSS * DOWN * SIDE;
    // What a thread stages of each line. Beyond a block activations are zeros.
    uint part = min(uint(local % WORDS), params.block_words - 1);
    uint mask = local % WORDS < params.block_words ? 0xffffffffu : 0u;
    // Where the lines of a thread begin: rows and tokens that do not exist are read as the last one, and not written. Beyond the end of a row codes are
    // whatever they are: activations are zeros there.
    uint rows_of[WORDS_EACH], tokens_of[VECTORS_EACH], scales_of[SCALES_EACH];
    EACH(i, WORDS_EACH) rows_of[i] = (matrix + min(row0 + (local + i * THREADS) / WORDS, params.n - 1)) * params.words;
    EACH(i, VECTORS_EACH) {
        int line = (local + i * THREADS) / WORDS;
        tokens_of[i] = (2 * input_row(min(line / 2, tokens - 1)) + line % 2) * params.blocks * params.block_words + part;
    }
    EACH(i, SCALES_EACH) {
        int at = local + i * THREADS;
        scales_of[i] = at < TILE_X ? (matrix + min(row0 + at, params.n - 1)) * params.groups
            : input_row(min(at - TILE_X, tokens - 1)) * params.blocks;
    }
    // There are no 2^31 tokens; but that is not known when this is compiled.
    float zero = uintBitsToFloat(params.m >> 31);
    uint next_codes[WORDS_EACH];
    uvec4 next_x[VECTORS_EACH];
    vec2 next_scales[SCALES_EACH];
    LOAD(0)
    float totals[DOWN][ACROSS][ELEMENTS_EACH];
    EACH(i, DOWN) EACH(j, ACROSS) EACH(e, ELEMENTS_EACH) totals[i][j][e] = 0.0;

    write_places(params.n % WIDE == 0);
    STAGE
    barrier();
    bool direct = as_expected();

    [[dont_unroll]] for (uint block = 0; block < params.blocks; block++) {
        LOAD(block + 1)
        ACCUMULATOR sums[DOWN][ACROSS];
        EACH(i, DOWN) EACH(j, ACROSS) sums[i][j] = ACCUMULATOR(0);
        MULTIPLY(TILE_X)
        // Every row of a matrix is a token, and every column a row.
        EACH(i, DOWN) {
            ACCUMULATOR of_token;
            coopMatLoad(of_token, added, down + i * SIDE, 0, gl_CooperativeMatrixLayoutColumnMajor);
            EACH(j, ACROSS) EACH(e, ELEMENTS_EACH) sums[i][j][e] = (sums[i][j][e] << 8) + of_token[e];
        }
        MULTIPLY((TILE_X + TILE_Y))
        ACCUMULATOR of_row[ACROSS];
        EACH(j, ACROSS) coopMatLoad(of_row[j], scales, right + j * SIDE, 0, gl_CooperativeMatrixLayoutRowMajor);
        EACH(i, DOWN) {
            ACCUMULATOR of_token;
            coopMatLoad(of_token, scales, TILE_X + down + i * SIDE, 0, gl_CooperativeMatrixLayoutColumnMajor);
            EACH(j, ACROSS) EACH(e, ELEMENTS_EACH) {
                // Exact. As `fma` of the sum with OFFSET, it would overflow where units are from 2^105 on.
                float sum = (intBitsToFloat(sums[i][j][e]) - intBitsToFloat(OFFSET)) * intBitsToFloat(of_token[e]);
                // A product that no compiler fuses with the sum after it: NVIDIA's (580.159) does that, `precise` or not.
                totals[i][j][e] += fma(sum, intBitsToFloat(of_row[j][e]), zero);
            }
        }
        barrier();
        STAGE
        barrier();
    }

    if (direct) {
        EACH(i, DOWN) {
            uint first = down + i * SIDE + lane_token(), row = row0 + right + lane_row();
            // Loads may not pass stores: one by one, they would take as long as all else. A total is no -0, so that 0 can be added.
            FLOATS before[SLICES][ACROSS * BLOCKS];
            EACH(h, SLICES) EACH(j, ACROSS * BLOCKS) before[h][j] = FLOATS(0.0);
            if (params.add != 0)
                EACH(h, SLICES) EACH(j, ACROSS * BLOCKS) before[h][j] =
                    load_outputs(output_row(min(first + h * TOKENS_APART, tokens - 1)), row + j * ROWS_APART, ANY, params.n);
            EACH(h, SLICES) EACH(j, ACROSS * BLOCKS) {
                FLOATS total = FLOATS(ELEMENTS(totals[i][j / BLOCKS], (h * BLOCKS + j % BLOCKS) * WIDE));
                if (!has_matrix()) total = FLOATS(NOT_A_NUMBER);
                if (first + h * TOKENS_APART < tokens)
                    store_outputs(output_row(first + h * TOKENS_APART), row + j * ROWS_APART, ANY, params.n, before[h][j] + total);
            }
        }
        return;
    }
    // By way of workgroup memory.
    int start = subgroup * SIDE * LINE;
    EACH(i, DOWN) {
        EACH(j, ACROSS) {
            ACCUMULATOR bits;
            EACH(e, ELEMENTS_EACH) bits[e] = floatBitsToInt(totals[i][j][e]);
            coopMatStore(bits, staged, (start + j * SIDE) / WORDS_OF_V, LINE / WORDS_OF_V, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
        store_staged(start, down + i * SIDE, tokens, row0 + right);
        subgroupBarrier();
    }
}
