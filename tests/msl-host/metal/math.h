// Arithmetic functions. Overloads are exact types, so that max(1, 2.0f) is ambiguous, as on Metal.
#pragma once

namespace metal {
#define MSL_ORDERED(t) \
    inline t min(t a, t b) { return b < a ? b : a; } \
    inline t max(t a, t b) { return a < b ? b : a; } \
    inline t clamp(t x, t low, t high) { return min(max(x, low), high); }
MSL_ORDERED(int) MSL_ORDERED(uint) MSL_ORDERED(float)
#undef MSL_ORDERED
template <class T, int N> inline vec<T, N> clamp(vec<T, N> x, T low, T high) {
    for (int i = 0; i < N; ++i) x.d[i] = clamp(x.d[i], low, high);
    return x;
}

inline float fabs(float x) { return __builtin_fabsf(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float rint(float x) { return __builtin_rintf(x); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

// b where c holds.
inline uint select(uint a, uint b, bool c) { return c ? b : a; }
inline uint extract_bits(uint x, uint offset, uint bits) { return bits == 0 ? 0 : x << (32 - offset - bits) >> (32 - bits); }
inline uint insert_bits(uint base, uint insert, uint offset, uint bits) {
    const uint mask = uint((1ul << bits) - 1) << offset;
    return (base & ~mask) | ((insert << offset) & mask);
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
}
