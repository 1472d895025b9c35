// Metal's words in C++ for OpenCL, which is strict in address spaces, casts and conversions of vectors.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define kernel __kernel
// Words of OpenCL that are ordinary names in Metal.
#define local local_
#define global global_
#define generic generic_
#define read_only read_only_
#define write_only write_only_
#define read_write read_write_
#define pipe pipe_
#define vec_step vec_step_
// Types of OpenCL that Metal declares otherwise.
#define atomic_int atomic_int_
#define atomic_uint atomic_uint_
#define atomic_ulong atomic_ulong_
#define atomic_float atomic_float_
// OpenCL has no vectors of bool.
#define GLOBAL_BOOLS(name, size) \
    struct name { bool v[size]; }; \
    namespace metal { typedef ::name name; } \
    namespace front { template <> struct shape<name> { typedef bool element; static constant constexpr int count = size; }; }
