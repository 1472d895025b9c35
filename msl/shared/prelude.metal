#include <metal_stdlib>
using namespace metal;

// Which thread of its threadgroup this is: its index, its lane in its SIMD-group, and the index of that SIMD-group.
struct Ids { uint local, lane, subgroup; };

// The index of a threadgroup in a one-dimensional grid, which the host may have folded into two dimensions.
static inline uint flat_group(uint3 group, uint3 groups) { return group.x + group.y * groups.x; }

// The index of a thread in such a grid.
static inline uint flat_thread(uint3 group, uint3 groups, uint local) { return flat_group(group, groups) * THREADS + local; }
