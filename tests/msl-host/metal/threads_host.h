// Barriers, SIMD-group operations and matrices for the CPU, on the runtime's fibers.
#pragma once

// The source line of the kernel's call. All lanes must call a SIMD-group operation from the same line.
#define MSL_FROM const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace metal {
inline void threadgroup_barrier(mem_flags, MSL_FROM) { msl_barrier(file, line); }
inline void simdgroup_barrier(mem_flags, MSL_FROM) { msl_simd_barrier(file, line); }
}

// Of Metal's atomic operations those on words that naga writes, without an order of other memory.
namespace metal {
enum memory_order { memory_order_relaxed };
struct atomic_uint { uint value; };
inline uint atomic_load_explicit(const atomic_uint* at, memory_order) { return __atomic_load_n(&at->value, __ATOMIC_RELAXED); }
inline void atomic_store_explicit(atomic_uint* at, uint v, memory_order) { __atomic_store_n(&at->value, v, __ATOMIC_RELAXED); }
inline uint atomic_fetch_max_explicit(atomic_uint* at, uint v, memory_order) {
    // Threads are fibers of one thread.
    const uint was = at->value;
    if (v > was) at->value = v;
    return was;
}
inline uint atomic_fetch_add_explicit(atomic_uint* at, uint v, memory_order) { return __atomic_fetch_add(&at->value, v, __ATOMIC_RELAXED); }
}

namespace msl {
// The values that the lanes of a SIMD-group exchange.
template <class T> struct Exchange {
    msl_lanes lanes;
    Exchange(const T& value, const char* file, int line) : lanes(msl_exchange(&value, sizeof(T), file, line)) {}
    const T& operator[](uint lane) const { return *(const T*)(lanes.slots + lane * MSL_SLOT_BYTES); }
};

// Metal does not define the order of a float sum; the runtime picks one.
template <class T, class Combine> inline T reduce(T value, const char* file, int line, Combine combine) {
    const Exchange<T> all(value, file, line);
    T result = all[all.lanes.order[0]];
    for (int i = 1; i < 32; ++i) result = combine(result, all[all.lanes.order[i]]);
    return result;
}
}

namespace metal {
#define MSL_REDUCTION(t) \
    inline t simd_sum(t v, MSL_FROM) { return msl::reduce(v, file, line, [](t a, t b) { return t(a + b); }); } \
    inline t simd_max(t v, MSL_FROM) { return msl::reduce(v, file, line, [](t a, t b) { return max(a, b); }); } \
    inline t simd_shuffle_xor(t v, ushort mask, MSL_FROM) { \
        const msl::Exchange<t> all(v, file, line); \
        return all[all.lanes.lane ^ mask]; \
    } \
    inline t quad_shuffle_xor(t v, ushort mask, MSL_FROM) { return simd_shuffle_xor(v, mask & 3, file, line); }
MSL_REDUCTION(int) MSL_REDUCTION(uint) MSL_REDUCTION(float)
#undef MSL_REDUCTION

// Each lane holds two neighbouring elements of a row. Metal does not define which lane holds which, so kernels must not depend on it.
template <class T, int columns, int rows> struct simdgroup_matrix { T element[2]; };
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

// Each lane accesses memory once before it waits for the others and once after, so that a missing barrier shows on either side.
inline uint meet_others(uint i, const char* file, int line) {
    if (i == 1) msl_exchange(nullptr, 0, file, line);
    return msl_lane();
}

template <class T, int C, int R> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) { return {{value, value}}; }

template <class T> inline void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& m, const T* from, ulong stride, ulong2 origin = ulong2(0), bool transpose = false, MSL_FROM)
{
    from += origin.y * stride + origin.x;
    for (uint i = 0; i < 2; ++i) {
        const uint lane = meet_others(i, file, line), row = lane / 4, column = lane % 4 * 2 + i;
        m.element[i] = transpose ? from[column * stride + row] : from[row * stride + column];
    }
}

template <class T> inline void simdgroup_store(
    simdgroup_matrix<T, 8, 8> m, T* to, ulong stride, ulong2 origin = ulong2(0), bool transpose = false, MSL_FROM)
{
    to += origin.y * stride + origin.x;
    for (uint i = 0; i < 2; ++i) {
        const uint lane = meet_others(i, file, line), row = lane / 4, column = lane % 4 * 2 + i;
        (transpose ? to[column * stride + row] : to[row * stride + column]) = m.element[i];
    }
}

// d = a · b + c, in float.
template <class D, class A, class B, class C> inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_FROM)
{
    struct Pair { A a[2]; B b[2]; };
    const msl::Exchange<Pair> all(Pair{{a.element[0], a.element[1]}, {b.element[0], b.element[1]}}, file, line);
    const uint row = all.lanes.lane / 4, pair = all.lanes.lane % 4;
    float sum[2] = {float(c.element[0]), float(c.element[1])};
    for (uint k = 0; k < 8; ++k) {
        const float left = float(all[row * 4 + k / 2].a[k % 2]);
        const Pair& right = all[k * 4 + pair];
        for (uint i = 0; i < 2; ++i) sum[i] += left * float(right.b[i]);
    }
    for (uint i = 0; i < 2; ++i) d.element[i] = D(sum[i]);
}
}
