// Barriers, SIMD-group operations and matrices for the strict check, which needs no bodies. A matrix's elements are not accessible.
#pragma once

namespace msl {
template <class T> __local T& threadgroup_memory();
}

namespace metal {
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define MSL_REDUCTION(t) t simd_sum(t); t simd_max(t); t simd_shuffle_xor(t, ushort); t quad_shuffle_xor(t, ushort);
MSL_REDUCTION(int) MSL_REDUCTION(uint) MSL_REDUCTION(float)
#undef MSL_REDUCTION

template <class T, int columns, int rows> class simdgroup_matrix {};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

template <class T, int C, int R> simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T);
#define MSL_MEMORY(space) \
    template <class T> void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const space T*, ulong, ulong2 = ulong2(0), bool = false); \
    template <class T> void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T*, ulong, ulong2 = ulong2(0), bool = false);
MSL_MEMORY(__global) MSL_MEMORY(__local)
#undef MSL_MEMORY
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(
    __private simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
}
