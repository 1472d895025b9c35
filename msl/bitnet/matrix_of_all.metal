// For bitlinear_block_float_gemv.metal: one matrix for all rows of x.
struct Params { uint m, n, blocks, words, block_words, groups, group_blocks, lanes, add; };

#define EXPERTS_ARGUMENT
#define INPUT_ROW(token) (token)
#define FIRST_ROW(token) 0u
#define BLOCK_SCALE(scale) (scale)
#define STORED(total, token, row) (total)
