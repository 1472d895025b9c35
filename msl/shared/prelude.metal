// What kernels use of Metal's library, but for matrices, which the parts with matrices import.
using metal::clamp; using metal::clz; using metal::ctz; using metal::dot; using metal::fabs; using metal::fma; using metal::max;
using metal::mem_flags; using metal::min; using metal::mulhi; using metal::quad_shuffle_xor; using metal::rint; using metal::rsqrt; using metal::sign;
using metal::simd_max; using metal::simd_shuffle_xor; using metal::simd_sum; using metal::simdgroup_barrier; using metal::sqrt;
using metal::threadgroup_barrier;

// Which thread of its threadgroup this is: its index, its lane in its SIMD-group, and the index of that SIMD-group.
struct Ids { uint local, lane, subgroup; };

// The index of a threadgroup in a one-dimensional grid, which the host may have folded into two dimensions.
static inline uint flat_group(uint3 group, uint3 groups) { return group.x + group.y * groups.x; }

// The index of a thread in such a grid.
static inline uint flat_thread(uint3 group, uint3 groups, uint local) { return flat_group(group, groups) * THREADS + local; }
