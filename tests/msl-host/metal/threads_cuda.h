// Barriers, SIMD-group operations and matrices in CUDA. All lanes of the warp must take part.
#pragma once

namespace msl {
constexpr unsigned EVERY_LANE = 0xffffffffu;

MSL_FN msl_place place() {
    msl_place place;
    const unsigned in_group[3] = {threadIdx.x, threadIdx.y, threadIdx.z}, size[3] = {blockDim.x, blockDim.y, blockDim.z};
    const unsigned at[3] = {blockIdx.x, blockIdx.y, blockIdx.z}, count[3] = {gridDim.x, gridDim.y, gridDim.z};
    for (int a = 0; a < 3; ++a) {
        place.thread_position_in_threadgroup[a] = in_group[a];
        place.threads_per_threadgroup[a] = size[a];
        place.threadgroup_position_in_grid[a] = at[a];
        place.threadgroups_per_grid[a] = count[a];
        place.thread_position_in_grid[a] = at[a] * size[a] + in_group[a];
        place.threads_per_grid[a] = count[a] * size[a];
    }
    const unsigned i = (in_group[2] * size[1] + in_group[1]) * size[0] + in_group[0];
    place.thread_index_in_threadgroup[0] = i;
    place.thread_index_in_simdgroup[0] = i % 32;
    place.simdgroup_index_in_threadgroup[0] = i / 32;
    place.simdgroups_per_threadgroup[0] = (size[0] * size[1] * size[2] + 31) / 32;
    place.threads_per_simdgroup[0] = 32;
    return place;
}

// Combines from the first lane to the last, like the CPU in forward order, so that float sums have the same bits.
template <class T, class Combine> MSL_FN T reduce(T value, Combine combine) {
    T result = __shfl_sync(EVERY_LANE, value, 0);
    for (unsigned lane = 1; lane < 32; ++lane) result = combine(result, __shfl_sync(EVERY_LANE, value, lane));
    return result;
}
}

namespace metal {
MSL_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }

#define MSL_REDUCTION(t) \
    MSL_FN t simd_sum(t v) { return msl::reduce(v, [](t a, t b) { return t(a + b); }); } \
    MSL_FN t simd_max(t v) { return msl::reduce(v, [](t a, t b) { return max(a, b); }); } \
    MSL_FN t simd_shuffle_xor(t v, ushort mask) { return __shfl_xor_sync(msl::EVERY_LANE, v, mask); } \
    MSL_FN t quad_shuffle_xor(t v, ushort mask) { return __shfl_xor_sync(msl::EVERY_LANE, v, mask & 3); }
MSL_REDUCTION(int) MSL_REDUCTION(uint) MSL_REDUCTION(float)
#undef MSL_REDUCTION

// Each lane holds two neighbouring elements of a row, as in threads_host.h.
template <class T, int columns, int rows> struct simdgroup_matrix { T element[2]; };
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

MSL_FN uint matrix_lane() { return msl::place().thread_index_in_simdgroup[0]; }

template <class T, int C, int R> MSL_FN simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) { return {{value, value}}; }

template <class T> MSL_FN void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& m, const T* from, ulong stride, ulong2 origin = ulong2(0), bool transpose = false)
{
    from += origin.y * stride + origin.x;
    const uint row = matrix_lane() / 4, pair = matrix_lane() % 4;
    for (uint i = 0; i < 2; ++i) {
        const uint column = pair * 2 + i;
        m.element[i] = transpose ? from[column * stride + row] : from[row * stride + column];
    }
}

template <class T> MSL_FN void simdgroup_store(
    simdgroup_matrix<T, 8, 8> m, T* to, ulong stride, ulong2 origin = ulong2(0), bool transpose = false)
{
    to += origin.y * stride + origin.x;
    const uint row = matrix_lane() / 4, pair = matrix_lane() % 4;
    for (uint i = 0; i < 2; ++i) {
        const uint column = pair * 2 + i;
        (transpose ? to[column * stride + row] : to[row * stride + column]) = m.element[i];
    }
}

// d = a · b + c, summed in float along k, which is not how NVIDIA's simdgroup matrices add.
template <class D, class A, class B, class C> MSL_FN void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c)
{
    const uint row = matrix_lane() / 4, pair = matrix_lane() % 4;
    float sum[2] = {float(c.element[0]), float(c.element[1])};
    for (uint k = 0; k < 8; ++k) {
        const float left = __shfl_sync(msl::EVERY_LANE, float(a.element[k % 2]), row * 4 + k / 2);
        for (uint i = 0; i < 2; ++i) sum[i] += left * __shfl_sync(msl::EVERY_LANE, float(b.element[i]), k * 4 + pair);
    }
    for (uint i = 0; i < 2; ++i) d.element[i] = D(sum[i]);
}
}
