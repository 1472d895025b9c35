// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, on tensor cores for
// f16; for many tokens t, whose activations are in block floating point (wgsl/bitnet/block_float_store.wgsl): pairs of f16, 32 columns of both in turn.
// A block's sum is exact, whatever the order; it is scaled, which rounds, and these are added in order: bit-identical in every kernel. codes is
// [rows, words] words of sixteen codes, y [tokens, rows]. A workgroup computes TILE_X rows × TILE_Y tokens, a subgroup DOWN × ACROSS matrices of SIDE × SIDE
// of them. 32 columns are in workgroup memory at a time, and those that follow are loaded while these are multiplied.
// WGSL cannot multiply a matrix by what its rows and columns are scaled by. A part before says which tokens a workgroup has, and which matrix they meet
// (matrix_of_all.comp, matrix_of_tile.comp).
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(std430, set = 0, binding = 1) readonly buffer Codes { uint codes[]; };
layout(std430, set = 0, binding = 2) readonly buffer WScale { float w_scale[]; };
layout(std430, set = 0, binding = 3) readonly buffer Units { float units[]; };

// Eight f16 are a unit of what is staged. 32 columns of a row, and of both f16 of a token, and a unit more, so that eight lines meet no bank twice.
const int ROW = 4, ROW_PITCH = 5;
const int TOKEN = 8, TOKEN_PITCH = 9;
const int TOKENS = TILE_X * ROW_PITCH;
const int SUBGROUPS_ACROSS = TILE_X / (ACROSS * SIDE);
// Floats, and sixteen bytes more, from one token to the next of a subgroup's outputs.
const int LINE = ACROSS * SIDE + 4;
const int STAGED = TOKENS + TILE_Y * TOKEN_PITCH;
// Each thread has as many of a block's scales, and the last ones nobody needs.
const int SCALES_EACH = (TILE_X + TILE_Y + THREADS - 1) / THREADS;
const int SCALES = SCALES_EACH * THREADS;
const int STORED = THREADS / LANES * SIDE * LINE / 4;

// Rows, then tokens; in the end each subgroup's outputs.
shared uvec4 staged[STAGED > STORED ? STAGED : STORED];
// What a block's sums are multiplied by, and those of the next one: of rows, then of tokens.
shared float scales[2 * SCALES];

const int WORDS_EACH = TILE_X * 2 / THREADS;
const int UNITS_EACH = TILE_Y * TOKEN / THREADS;

// Loads a thread's share of the 32 columns of number `step`. Beyond the end of a row codes are whatever they are: activations are zeros there.
#define LOAD(step) { \
    EACH(i, WORDS_EACH) \
        next_codes[i] = codes[rows_of[i] + min(2 * (step) + uint(local % 2), params.words - 1)]; \
    EACH(i, UNITS_EACH) next_x[i] = x[tokens_of[i] + min(step, steps - 1) * TOKEN]; \
}

// Loads a thread's share of what a block is scaled by.
#define LOAD_SCALES(block) { \
    uint b = min(block, params.blocks - 1); \
    EACH(i, SCALES_EACH) { \
        int at = local + i * THREADS; \
        next_scales[i] = at < TILE_X ? w_scale[scales_of[i] + b / params.group_blocks] : 256.0 * units[scales_of[i] + b]; \
    } \
}

// Stages what was loaded.
#define STAGE { \
    EACH(i, WORDS_EACH) { \
        uint w = next_codes[i]; \
        int at = (local + i * THREADS) / 2 * ROW_PITCH + local % 2 * 2; \
        staged[at] = uvec4(values(w << 10), values(w << 2), values(w << 8), values(w)); \
        staged[at + 1] = uvec4(values(w << 6), values(w >> 2), values(w << 4), values(w >> 4)); \
    } \
    EACH(i, UNITS_EACH) staged[TOKENS + (local + i * THREADS) / TOKEN * TOKEN_PITCH + local % TOKEN] = next_x[i]; \
}

// Two codes, which are in the exponents of f16, as values -1, 0 or 1. Code·2^-14 becomes code, and loses 1.
uint values(const uint halves) { return packFloat2x16(unpackFloat2x16(halves & 0x0c000c00u) * float16_t(16384.0) - float16_t(1.0)); }

// A product that no compiler takes apart or fuses with a sum: NVIDIA's (580.159) does that, `precise` or not, where products and sums are of matrices. There are
// no 2^31 tokens; but that is not known when this is compiled.
float apart(const float product) { return uintBitsToFloat(floatBitsToUint(product) | params.m >> 31); }

float scaled(const float sum, const float of_token, const float of_row) { return apart(apart(sum * of_token) * of_row); }

#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000)
// Tokens are compared with how many there are before these are loaded or stored.
const uint ANY = 0xffffffffu;

// SIDE tokens of a subgroup from workgroup memory, where they lie from `start` on. Lanes are rows.
void store_staged(const int start, const uint first, const uint tokens, const uint row0) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < SIDE * ACROSS * SIDE; i += LANES) {
        uint line = i / (ACROSS * SIDE), column = i % (ACROSS * SIDE);
        uint token = first + line, row = row0 + column;
        if (row < params.n && token < tokens) {
            uint from = start + line * LINE + column;
            float total = has_matrix() ? uintBitsToFloat(staged[from / 4][from % 4]) : NOT_A_NUMBER;
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
    // A line is 32 columns of a step.
    uint block_steps = params.block_words / 2;
    uint steps = params.blocks * block_steps;
    // Where the lines of a thread begin: rows and tokens that do not exist are read as the last one, and not written.
    uint rows_of[WORDS_EACH], tokens_of[UNITS_EACH], scales_of[SCALES_EACH];
    EACH(i, WORDS_EACH) rows_of[i] = (matrix + min(row0 + (local + i * THREADS) / 2, params.n - 1)) * params.words;
    EACH(i, UNITS_EACH)
        tokens_of[i] = input_row(min((local + i * THREADS) / TOKEN, tokens - 1)) * steps * TOKEN + local % TOKEN;
    EACH(i, SCALES_EACH) {
        int at = local + i * THREADS;
        scales_of[i] = at < TILE_X ? (matrix + min(row0 + at, params.n - 1)) * params.groups
            : input_row(min(at - TILE_X, tokens - 1)) * params.blocks;
    }
    uint next_codes[WORDS_EACH];
    uvec4 next_x[UNITS_EACH];
    float next_scales[SCALES_EACH];
    LOAD(0)
    LOAD_SCALES(0)
    ACCUMULATOR sums[DOWN][ACROSS];
    ACCUMULATOR totals[DOWN][ACROSS];
    EACH(i, DOWN)
        EACH(j, ACROSS) {
            sums[i][j] = ACCUMULATOR(0.0);
            totals[i][j] = ACCUMULATOR(0.0);
        }

    write_places(params.n % WIDE == 0);
    STAGE
    barrier();
    bool direct = as_expected();

    for (uint block = 0; block < params.blocks; block++) {
        int turn = int(block % 2) * SCALES;
        EACH(i, SCALES_EACH) scales[turn + local + i * THREADS] = next_scales[i];
        LOAD_SCALES(block + 1)
        [[dont_unroll]] for (uint step = block * block_steps; step < (block + 1) * block_steps; step++) {
            LOAD(step + 1)
            [[unroll]] for (int k = 0; k < 32; k += SIDE) {
                MATRIX(float16_t, SIDE, SIDE, B) b[ACROSS];
                EACH(j, ACROSS)
                    coopMatLoad(b[j], staged, (right + j * SIDE) * ROW_PITCH + k / 8, ROW_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                EACH(i, DOWN) {
                    // The first f16, and the second ones.
                    [[unroll]] for (int part = 0; part < 8; part += 4) {
                        MATRIX(float16_t, SIDE, SIDE, A) a;
                        coopMatLoad(a, staged, TOKENS + (down + i * SIDE) * TOKEN_PITCH + part + k / 8, TOKEN_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                        EACH(j, ACROSS) sums[i][j] = coopMatMulAdd(a, b[j], sums[i][j]);
                    }
                }
            }
            barrier();
            STAGE
            barrier();
        }
        // Every token's row of matrices has the rows' scales, and every row's column those of tokens.
        ACCUMULATOR of_row[ACROSS];
        EACH(j, ACROSS) coopMatLoad(of_row[j], scales, turn + right + j * SIDE, 0, gl_CooperativeMatrixLayoutRowMajor);
        EACH(i, DOWN) {
            ACCUMULATOR of_token;
            coopMatLoad(of_token, scales, turn + TILE_X + down + i * SIDE, 0, gl_CooperativeMatrixLayoutColumnMajor);
            EACH(j, ACROSS) {
                [[unroll]] for (int e = 0; e < totals[i][j].length(); e++)
                    totals[i][j][e] += scaled(sums[i][j][e], of_token[e], of_row[j][e]);
                sums[i][j] = ACCUMULATOR(0.0);
            }
        }
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
        EACH(j, ACROSS) coopMatStore(totals[i][j], staged, (start + j * SIDE) / 4, LINE / 4, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        store_staged(start, down + i * SIDE, tokens, row0 + right);
        subgroupBarrier();
    }
}
