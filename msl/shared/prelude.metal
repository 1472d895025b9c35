#include <metal_stdlib>
using namespace metal;

// A thread's place in its threadgroup.
struct Ids { uint local, lane, simd; };

// The place of a threadgroup in a one-dimensional grid that the host may have folded into two.
static inline uint flat_group(uint3 group, uint3 groups) { return group.x + group.y * groups.x; }
