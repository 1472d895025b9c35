// For bitlinear_block_float_tensor_cores.comp: tiles of rows that use the same expert, as wgsl/bitnet/sort_experts.wgsl writes them. The first vector of tiles has their
// number; those after it an expert, where its rows begin in `sorted`, and how many they are. Without such an expert, outputs are NaN.
layout(push_constant) uniform Params {
    uint m; uint n; uint blocks; uint words; uint block_words; uint groups; uint group_blocks; uint lanes; uint add; uint experts; uint per_token; uint scaled_last;
} params;
layout(std430, set = 0, binding = 5) readonly buffer Sorted { uint sorted[]; };
layout(std430, set = 0, binding = 6) readonly buffer Tiles { uvec4 tiles[]; };

bool is_idle() { return gl_WorkGroupID.y >= tiles[0].x; }
uvec4 own_tile() { return tiles[1 + gl_WorkGroupID.y]; }
uint tokens_left() { return own_tile().z; }

// The row of x that a token of the tile is, its output, and the first row of its matrix.
uint output_row(const uint token) { return sorted[own_tile().y + token]; }
uint input_row(const uint token) { return output_row(token) / params.per_token; }
bool has_matrix() { return own_tile().x < params.experts; }
uint first_row() { return has_matrix() ? own_tile().x * params.n : 0; }
