// For bitlinear_block_float_gemv.metal: output row i is of matrix chosen[i] and of row i / per_token of x. Without such a matrix it is NaN.
struct Params { uint m, n, blocks, words, block_words, groups, group_blocks, lanes, add, experts, per_token, scaled_last; };

#define INPUT_ROW(token) ((token) / params.per_token)
#define FIRST_ROW(token) ((chosen[token] < params.experts ? chosen[token] : 0u) * params.n)
#define NAN_UNLESS(there, value) ((there) ? (value) : as_type<float>(0x7fc00000u))
