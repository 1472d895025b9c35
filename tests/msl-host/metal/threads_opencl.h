// Barriers and SIMD-group operations for SPIR-V: OpenCL's functions, under names that the LLVM-to-SPIR-V translator knows. No matrices.
#pragma once

#define MSL_CONVERGENT __attribute__((convergent, nothrow))
#define MSL_PURE __attribute__((const, nothrow))

// Scope 2 is a work-group, 3 a sub-group.
MSL_CONVERGENT void __spirv_ControlBarrier(uint execution, uint memory, uint semantics);
#define MSL_REDUCTION(t) MSL_CONVERGENT t sub_group_reduce_add(t); MSL_CONVERGENT t sub_group_reduce_max(t); \
    MSL_CONVERGENT t sub_group_shuffle_xor(t, uint);
MSL_REDUCTION(int) MSL_REDUCTION(uint) MSL_REDUCTION(float)
#undef MSL_REDUCTION

MSL_PURE ulong get_global_id(uint);
MSL_PURE ulong get_global_size(uint);
MSL_PURE ulong get_local_id(uint);
MSL_PURE ulong get_local_size(uint);
MSL_PURE ulong get_group_id(uint);
MSL_PURE ulong get_num_groups(uint);
MSL_PURE uint get_sub_group_local_id();
MSL_PURE uint get_sub_group_id();
MSL_PURE uint get_num_sub_groups();

// Placeholders, replaced in the LLVM IR: by a variable in local memory, and by a bitcast, which clang would turn into shifts.
extern "C" MSL_PURE __local void* msl_threadgroup_memory(uint site, uint bytes);
typedef half msl_half2 __attribute__((ext_vector_type(2)));
extern "C" MSL_PURE msl_half2 msl_as_half2(uint);

namespace msl {
constexpr uint semantics(metal::mem_flags flags) { return (uint(flags) & 2u ? 0x108u : 0u) | (uint(flags) & 1u ? 0x208u : 0u); }
}

namespace metal {
inline void threadgroup_barrier(mem_flags flags) { __spirv_ControlBarrier(2, 2, msl::semantics(flags)); }
inline void simdgroup_barrier(mem_flags flags) { __spirv_ControlBarrier(3, 3, msl::semantics(flags)); }

#define MSL_REDUCTION(t) \
    inline t simd_sum(t v) { return sub_group_reduce_add(v); } \
    inline t simd_max(t v) { return sub_group_reduce_max(v); } \
    inline t simd_shuffle_xor(t v, ushort mask) { return sub_group_shuffle_xor(v, mask); } \
    inline t quad_shuffle_xor(t v, ushort mask) { return sub_group_shuffle_xor(v, mask); }
MSL_REDUCTION(int) MSL_REDUCTION(uint) MSL_REDUCTION(float)
#undef MSL_REDUCTION

template <> inline half2 as_type<half2, uint>(uint bits) {
    const msl_half2 pair = msl_as_half2(bits);
    return half2(pair[0], pair[1]);
}
}

// A kernel's arguments, as objects that convert to the parameter's type, so that the type need not be parsed.
namespace msl {
struct Global {
    __global void* to;
    template <class T> operator __global T*() const { return (__global T*)to; }
};

struct GlobalReference {
    __global void* to;
    template <class T> operator __global T&() const { return *(__global T*)to; }
};

struct Constant {
    const __constant void* to;
    template <class T> operator __constant T*() const { return (__constant T*)to; }
};

struct ConstantReference {
    const __constant void* to;
    template <class T> operator __constant T&() const { return *(__constant T*)to; }
};

struct Place {
    uint at[3];
    operator uint() const { return at[0]; }
    operator uint2() const { return uint2(at[0], at[1]); }
    operator uint3() const { return uint3(at[0], at[1], at[2]); }
};
}
