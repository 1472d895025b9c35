// Metal's standard library as far as kernels here use it; a function that none uses is an error, as a misspelt one is.
//
// Three readings of the same text: plain C++17 that runs, where a thread is a fiber (../runtime); C++ for OpenCL, which clang only checks,
// with real address spaces; and the same with MSL_SPIRV, where clang makes code of it.
#pragma once

#ifdef __OPENCL_CPP_VERSION__
#define MSL_CHECK
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#else
#include "../runtime/runtime.h"
typedef _Float16 half;
#endif

#include "vector.h"
#include "math.h"
#ifdef MSL_SPIRV
#include "threads_opencl.h"
#elif defined(MSL_CHECK)
#include "threads_check.h"
#else
#include "threads_host.h"
#include "arguments.h"
#endif

// Metal's own words, from here on.
#define kernel
#ifdef MSL_CHECK
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
// Words of OpenCL that are names in Metal.
#define global global_
#define local local_
#define generic generic_
// A declaration in threadgroup memory is rewritten to these.
#ifdef MSL_SPIRV
#define MSL_THREADGROUP_REFERENCE(type, name, site) __local type& name = *(__local type*)msl_threadgroup_memory(site, sizeof(type))
#else
#define MSL_THREADGROUP_REFERENCE(type, name, site) __local type& name = msl::threadgroup_memory<type>()
#endif
#define MSL_THREADGROUP_BYTES(bytes) static_assert((bytes) <= 32768, "more than 32 KiB of threadgroup memory")
#else
#define device
#define constant const
#define threadgroup
#define thread
#define MSL_THREADGROUP_REFERENCE(type, name, site) type& name = *(type*)msl_threadgroup_memory(site, sizeof(type), #name)
#define MSL_THREADGROUP_BYTES(bytes)
#endif
