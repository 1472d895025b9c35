// Scalars, vectors, and as_type.
#pragma once

typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned char uchar;

namespace msl {
template <bool condition, class T = int> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };

template <class T, int N> struct components;
template <class T> struct components<T, 2> { union { T d[2]; struct { T x, y; }; }; };
template <class T> struct components<T, 3> { union { T d[3]; struct { T x, y, z; }; }; };
template <class T> struct components<T, 4> { union { T d[4]; struct { T x, y, z, w; }; }; };
}

namespace metal {
using ::uint;

// As in Metal, a scalar converts to a vector implicitly, a vector of another type only explicitly.
template <class T, int N, bool packed = false>
struct alignas(packed ? alignof(T) : sizeof(T) * (N == 3 ? 4 : N)) vec : msl::components<T, N> {
    using msl::components<T, N>::d;

    vec() = default;
    MSL_FN vec(T s) { for (int i = 0; i < N; ++i) d[i] = s; }
    template <class... S, typename msl::enable_if<sizeof...(S) == N && (N > 1)>::type = 0> MSL_FN vec(S... s) {
        int i = 0;
        ((d[i++] = T(s)), ...);
    }
    template <int M = N, typename msl::enable_if<M == 4>::type = 0> MSL_FN vec(vec<T, 2> low, vec<T, 2> high) {
        for (int i = 0; i < 2; ++i) d[i] = low.d[i], d[i + 2] = high.d[i];
    }
    MSL_FN vec(const vec<T, N, !packed>& o) { for (int i = 0; i < N; ++i) d[i] = o.d[i]; }
    template <class U, bool P> MSL_FN explicit vec(const vec<U, N, P>& o) { for (int i = 0; i < N; ++i) d[i] = T(o.d[i]); }

    MSL_FN T& operator[](uint i) { return d[i]; }
    MSL_FN T operator[](uint i) const { return d[i]; }
    // ../src/rewrite.rs rewrites v.xz to this.
    template <int... at> MSL_FN vec<T, sizeof...(at)> swizzle() const { return vec<T, sizeof...(at)>(d[at]...); }

#define MSL_OPERATOR(op) \
    friend MSL_FN vec operator op(vec a, vec b) { \
        for (int i = 0; i < N; ++i) a.d[i] = T(a.d[i] op b.d[i]); \
        return a; \
    }
    MSL_OPERATOR(+) MSL_OPERATOR(-) MSL_OPERATOR(*) MSL_OPERATOR(/) MSL_OPERATOR(&) MSL_OPERATOR(|)
#undef MSL_OPERATOR
    // A shift's places may be of another type of integer.
#define MSL_SHIFT(op) \
    template <class U> friend MSL_FN vec operator op(vec a, vec<U, N> b) { \
        for (int i = 0; i < N; ++i) a.d[i] = T(a.d[i] op b.d[i]); \
        return a; \
    }
    MSL_SHIFT(<<) MSL_SHIFT(>>)
#undef MSL_SHIFT
    friend MSL_FN vec& operator+=(vec& a, vec b) { return a = a + b; }
    friend MSL_FN vec& operator*=(vec& a, vec b) { return a = a * b; }
};

template <class D, class S> MSL_FN D as_type(S s) {
    static_assert(sizeof(D) == sizeof(S), "as_type between types of different sizes");
    return __builtin_bit_cast(D, s);
}
}

// Metal has these names both in namespace `metal` and outside.
#define MSL_VECTORS(t) \
    typedef metal::vec<t, 2> t##2; typedef metal::vec<t, 3> t##3; typedef metal::vec<t, 4> t##4; \
    typedef metal::vec<t, 3, true> packed_##t##3; typedef metal::vec<t, 4, true> packed_##t##4; \
    namespace metal { using ::t##2; using ::t##3; using ::t##4; using ::packed_##t##3; using ::packed_##t##4; }
MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(ulong) MSL_VECTORS(half) MSL_VECTORS(float)
#undef MSL_VECTORS
using metal::as_type;
