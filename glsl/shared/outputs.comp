// Outputs of a product on tensor cores, from the lanes that have them straight to memory, two rows at once where a lane has neighbors.

// What a sum of the matrices is: those of int8 have more columns than rows.
#ifdef COLUMNS
#define SUM int
#else
#define SUM float
#endif

// A lane has WIDE neighboring rows of a token, which are loaded and stored together.
#if WIDE == 2
#define FLOATS vec2
#define OUTPUTS Y2
#define OUTPUT(at) y[(at) / 2][(at) % 2]
#define ELEMENTS(matrix, e) matrix[e], matrix[(e) + 1]
#else
#define FLOATS float
#define OUTPUTS Y
#define OUTPUT(at) y[at]
#define ELEMENTS(matrix, e) matrix[e]
#endif
layout(std430, set = 0, binding = BINDING) buffer Output { OUTPUTS y[]; };

// How the elements of a matrix lie in a subgroup. LANES_ACROSS lanes side by side have WIDE rows each of a token, the lanes after them the tokens that
// follow. The next elements of a lane are ROWS_APART rows on, and after BLOCKS of these TOKENS_APART tokens on.
const int TOKENS_APART = LANES / LANES_ACROSS;
const int ROWS_APART = WIDE * LANES_ACROSS;
const int SLICES = SIDE / TOKENS_APART;
const int BLOCKS = SIDE / ROWS_APART;
uint lane_token() { return gl_SubgroupInvocationID / LANES_ACROSS; }
uint lane_row() { return WIDE * (gl_SubgroupInvocationID % LANES_ACROSS); }
uint element_of(const int e) {
    return (lane_token() + e / (WIDE * BLOCKS) * TOKENS_APART) * SIDE + lane_row() + e / WIDE % BLOCKS * ROWS_APART + e % WIDE;
}

#define MATRIX(type, rows, columns, use) coopmat<type, gl_ScopeSubgroup, rows, columns, gl_MatrixUse##use>
#define ACCUMULATOR MATRIX(SUM, SIDE, SIDE, Accumulator)
#define EACH(i, count) [[unroll]] for (int i = 0; i < count; i++)

// The elements of a matrix, in order; none of them where a thread writes that it is not `usual`: each writes one or more.
shared SUM places[SIDE * SIDE];
void write_places(const bool usual) {
    for (int i = int(gl_LocalInvocationIndex); i < SIDE * SIDE; i += THREADS) places[i] = SUM(usual ? i : -1);
}

// After a barrier, whether the elements of this subgroup's matrices lie as above and all threads were `usual`.
bool as_expected() {
    ACCUMULATOR found;
    coopMatLoad(found, places, 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    bool expected = true;
    EACH(e, SIDE * SIDE / LANES) expected = expected && uint(found[e]) == element_of(e);
    return subgroupAll(expected);
}

// Outputs of a token from `row` on, or of the last ones.
FLOATS load_outputs(const uint token, const uint row, const uint tokens, const uint rows) {
    return FLOATS(y[(min(token, tokens - 1) * rows + min(row, rows - WIDE)) / WIDE]);
}

// Stores those that exist.
void store_outputs(const uint token, const uint row, const uint tokens, const uint rows, const FLOATS made) {
    if (token < tokens && row < rows) y[(token * rows + row) / WIDE] = OUTPUTS(made);
}
