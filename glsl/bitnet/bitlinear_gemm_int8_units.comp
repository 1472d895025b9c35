// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0, on tensor cores for int8; for many tokens t. codes is
// [rows, words] words of sixteen codes, x [tokens, words] vectors of sixteen int8 activations, y [tokens, rows]. A workgroup computes TILE_X rows × TILE_Y
// tokens, a subgroup DOWN × ACROSS matrices of SIDE × SIDE of them, from matrices of SIDE × COLUMNS. DEPTH columns are in workgroup memory at a time,
// and those that follow are loaded while these are multiplied. Sums are of 32 bits, as in every kernel for int8.
// WGSL has no matrices of int8.
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(push_constant) uniform Params { uint rows; uint tokens; uint words; uint add; } params;
layout(std430, set = 0, binding = 0) readonly buffer Codes { uint codes[]; };
layout(std430, set = 0, binding = 1) readonly buffer WScale { float w_scale[]; };
layout(std430, set = 0, binding = 2) readonly buffer X { uvec4 x[]; };
layout(std430, set = 0, binding = 3) readonly buffer XScale { float x_scale[]; };
layout(std430, set = 0, binding = 4) readonly buffer XSum { ivec2 x_sum[]; };
layout(std430, set = 0, binding = 5) buffer Output { Y y[]; };

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
// Words, and a multiple of sixteen bytes more, from one token to the next of a subgroup's outputs.
const int OUTPUTS = ACROSS * SIDE + 4;
const int STAGED = (TILE_X + TILE_Y) * PITCH;
const int STORED = THREADS / LANES * SIDE * OUTPUTS / WORDS_OF_V;

// Rows, then tokens, as bytes; in the end each subgroup's outputs.
shared V staged[STAGED > STORED ? STAGED : STORED];
// The bits of the scale, and of the sum of the activations, of the tile's tokens.
shared uvec2 of_tokens[TILE_Y];

#define MATRIX(type, rows, columns, use) coopmat<type, gl_ScopeSubgroup, rows, columns, gl_MatrixUse##use>

// How many words of codes, and vectors of activations, a thread stages, and how many lines they are apart.
const int WORDS_EACH = TILE_X * STEP / THREADS;
const int VECTORS_EACH = TILE_Y * STEP / THREADS;
const int LINES = THREADS / STEP;

// Loads a thread's words from `first` on: activations of 0 after the end of a line.
#define LOAD(first) { \
    uint at = min(first + word, params.words - 1); \
    bool there = first + word < params.words; \
    [[unroll]] for (int i = 0; i < WORDS_EACH; i++) next_codes[i] = codes[rows_of[i] + at]; \
    [[unroll]] for (int i = 0; i < VECTORS_EACH; i++) next_x[i] = there ? x[tokens_of[i] + at] : uvec4(0); \
}

void stage(int line, int word, uvec4 bytes) {
    int at = line * PITCH + word * 4 / WORDS_OF_V;
#if COLUMNS < 16
    staged[at] = bytes.xy;
    staged[at + 1] = bytes.zw;
#else
    staged[at] = bytes;
#endif
}

void main() {
    int local = int(gl_LocalInvocationIndex);
    int row0 = int(gl_WorkGroupID.x) * TILE_X;
    int token0 = int(gl_WorkGroupID.y) * TILE_Y;
    int subgroup = int(gl_SubgroupID);
    int lane = int(gl_SubgroupInvocationID);
    // The first output of a subgroup in the tile.
    int right = subgroup % SUBGROUPS_ACROSS * ACROSS * SIDE;
    int down = subgroup / SUBGROUPS_ACROSS * DOWN * SIDE;
    for (int i = local; i < TILE_Y; i += THREADS) {
        uint token = min(token0 + i, params.tokens - 1);
        of_tokens[i] = uvec2(floatBitsToUint(x_scale[token]), uint(x_sum[token].x));
    }
    // The word that a thread stages of its lines, and where these begin: rows and tokens that do not exist are read as the last one, and not written.
    int word = local % STEP;
    uint rows_of[WORDS_EACH], tokens_of[VECTORS_EACH];
    [[unroll]] for (int i = 0; i < WORDS_EACH; i++) rows_of[i] = min(row0 + local / STEP + i * LINES, params.rows - 1) * params.words;
    [[unroll]] for (int i = 0; i < VECTORS_EACH; i++) tokens_of[i] = min(token0 + local / STEP + i * LINES, params.tokens - 1) * params.words;
    uint next_codes[WORDS_EACH];
    uvec4 next_x[VECTORS_EACH];
    LOAD(0)
    MATRIX(int, SIDE, SIDE, Accumulator) sums[DOWN][ACROSS];
    [[unroll]] for (int i = 0; i < DOWN; i++)
        [[unroll]] for (int j = 0; j < ACROSS; j++) sums[i][j] = MATRIX(int, SIDE, SIDE, Accumulator)(0);

    for (uint first = 0; first < params.words; first += STEP) {
        [[unroll]] for (int i = 0; i < WORDS_EACH; i++) {
            // The bytes of a word have the first codes of four quads, then the second ones, and so on.
            uint codes = next_codes[i];
            stage(local / STEP + i * LINES, word, uvec4(codes, codes >> 2, codes >> 4, codes >> 6) & 0x03030303u);
        }
        [[unroll]] for (int i = 0; i < VECTORS_EACH; i++) stage(TILE_X + local / STEP + i * LINES, word, next_x[i]);
        barrier();
        LOAD(first + STEP)
        [[unroll]] for (int k = 0; k < DEPTH; k += COLUMNS) {
            int column = k / 4 / WORDS_OF_V;
            MATRIX(int8_t, COLUMNS, SIDE, B) b[ACROSS];
            [[unroll]] for (int j = 0; j < ACROSS; j++)
                coopMatLoad(b[j], staged, (right + j * SIDE) * PITCH + column, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (int i = 0; i < DOWN; i++) {
                MATRIX(int8_t, SIDE, COLUMNS, A) a;
                coopMatLoad(a, staged, (TILE_X + down + i * SIDE) * PITCH + column, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int j = 0; j < ACROSS; j++) sums[i][j] = coopMatMulAdd(a, b[j], sums[i][j]);
            }
        }
        barrier();
    }

    // By way of workgroup memory, since lanes do not know which outputs of a matrix they hold: SIDE tokens of a subgroup at a time. Lanes are rows.
    int start = subgroup * SIDE * OUTPUTS;
    [[unroll]] for (int i = 0; i < DOWN; i++) {
        [[unroll]] for (int j = 0; j < ACROSS; j++)
            coopMatStore(sums[i][j], staged, (start + j * SIDE) / WORDS_OF_V, OUTPUTS / WORDS_OF_V, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        [[unroll]] for (int column = 0; column < ACROSS * SIDE; column += LANES) {
            uint row = row0 + right + column + lane;
            float beta = w_scale[min(row, params.rows - 1)];
            [[dont_unroll]] for (int t = 0; t < SIDE; t++) {
                uint token = token0 + down + i * SIDE + t;
                if (row < params.rows && token < params.tokens) {
                    int at = start + t * OUTPUTS + column + lane;
                    uvec2 of_token = of_tokens[down + i * SIDE + t];
                    // Codes are value + 1, so the sum of the activations is subtracted.
                    float sum = float(int(staged[at / WORDS_OF_V][at % WORDS_OF_V]) - int(of_token.y));
                    float product = exact_quotient(sum * beta, uintBitsToFloat(of_token.x));
                    uint index = token * params.rows + row;
                    if (params.add != 0) y[index] = Y(float(y[index]) + product); else y[index] = Y(product);
                }
            }
        }
        subgroupBarrier();
    }
}
