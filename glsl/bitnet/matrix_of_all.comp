// For bitlinear_block_float_tensor_cores.comp: one matrix for all rows of x.
layout(push_constant) uniform Params { uint m; uint n; uint blocks; uint words; uint block_words; uint groups; uint group_blocks; uint lanes; uint add; } params;

// The first token of a workgroup, and how many tokens there are from it on.
uint first_token() { return gl_WorkGroupID.y * TILE_Y; }
uint tokens_left() { return params.m - first_token(); }
bool is_idle() { return false; }

// The row of x that a token of the tile is, its output, and the first row of its matrix.
uint input_row(const uint token) { return first_token() + token; }
uint output_row(const uint token) { return first_token() + token; }
uint first_row() { return 0; }
bool has_matrix() { return true; }
