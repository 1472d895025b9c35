// Arithmetic functions, overloaded for exact types, so that max(1, 2.0f) is ambiguous, as in Metal.
#pragma once

namespace metal {
#define MSL_ORDERED(t) \
    MSL_FN t min(t a, t b) { return b < a ? b : a; } \
    MSL_FN t max(t a, t b) { return a < b ? b : a; } \
    MSL_FN t clamp(t x, t low, t high) { return min(max(x, low), high); }
MSL_ORDERED(int) MSL_ORDERED(uint) MSL_ORDERED(float)
#undef MSL_ORDERED
template <class T, int N> MSL_FN vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
    for (int i = 0; i < N; ++i) x[i] = clamp(x[i], low[i], high[i]);
    return x;
}
template <class T, int N> MSL_FN vec<T, N> min(vec<T, N> a, vec<T, N> b) {
    for (int i = 0; i < N; ++i) a[i] = min(a[i], b[i]);
    return a;
}
template <class T, int N> MSL_FN vec<T, N> max(vec<T, N> a, vec<T, N> b) {
    for (int i = 0; i < N; ++i) a[i] = max(a[i], b[i]);
    return a;
}
template <class T, int N> MSL_FN vec<T, N> clamp(vec<T, N> x, T low, T high) {
    for (int i = 0; i < N; ++i) x.d[i] = clamp(x.d[i], low, high);
    return x;
}

MSL_FN float fabs(float x) { return MSL_C(fabsf)(x); }
MSL_FN float abs(float x) { return MSL_C(fabsf)(x); }
MSL_FN float sqrt(float x) { return MSL_C(sqrtf)(x); }
MSL_FN float rsqrt(float x) { return 1.0f / MSL_C(sqrtf)(x); }
MSL_FN float exp(float x) { return MSL_C(expf)(x); }
MSL_FN float exp2(float x) { return MSL_C(exp2f)(x); }
MSL_FN float log(float x) { return MSL_C(logf)(x); }
MSL_FN float log2(float x) { return MSL_C(log2f)(x); }
MSL_FN float trunc(float x) { return MSL_C(truncf)(x); }
MSL_FN float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
MSL_FN float rint(float x) { return MSL_C(rintf)(x); }
template <int N> MSL_FN vec<float, N> rint(vec<float, N> x) {
    for (int i = 0; i < N; ++i) x[i] = rint(x[i]);
    return x;
}
MSL_FN float fma(float x, float y, float z) { return MSL_C(fmaf)(x, y, z); }
template <int N> MSL_FN vec<float, N> fma(vec<float, N> x, vec<float, N> y, vec<float, N> z) {
    for (int i = 0; i < N; ++i) x.d[i] = fma(x.d[i], y.d[i], z.d[i]);
    return x;
}
template <class T, int N> MSL_FN T dot(vec<T, N> a, vec<T, N> b) {
    T sum = a.d[0] * b.d[0];
    for (int i = 1; i < N; ++i) sum += a.d[i] * b.d[i];
    return sum;
}

#ifdef __CUDACC__
MSL_FN uint clz(uint x) { return uint(__clz(int(x))); }
MSL_FN uint reverse_bits(uint x) { return __brev(x); }
MSL_FN uint popcount(uint x) { return uint(__popc(x)); }
#else
MSL_FN uint popcount(uint x) { return uint(__builtin_popcount(x)); }
MSL_FN uint clz(uint x) { return x == 0 ? 32u : uint(__builtin_clz(x)); }
MSL_FN uint reverse_bits(uint x) {
    uint reversed = 0;
    for (uint i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
#endif
MSL_FN uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }

MSL_FN uint ctz(uint x) { return x == 0 ? 32u : 31u - clz(x & (0u - x)); }

// b if c, else a.
MSL_FN uint select(uint a, uint b, bool c) { return c ? b : a; }
MSL_FN uint extract_bits(uint x, uint offset, uint bits) { return bits == 0 ? 0 : x << (32 - offset - bits) >> (32 - bits); }
MSL_FN int extract_bits(int x, uint offset, uint bits) { return bits == 0 ? 0 : int(uint(x) << (32 - offset - bits)) >> (32 - bits); }
MSL_FN uint insert_bits(uint base, uint insert, uint offset, uint bits) {
    const uint mask = uint((1ul << bits) - 1) << offset;
    return (base & ~mask) | ((insert << offset) & mask);
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
MSL_FN mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
}
