// The part of Metal's standard library that the kernels here use. Any other function is an error, like a misspelt one.
//
// The same text is compiled in three ways: as C++17 that runs on the CPU, each thread a fiber (../runtime); with MSL_SPIRV as C++ for OpenCL with
// real address spaces; and as CUDA, where a SIMD-group is a warp.
#pragma once

#ifdef MSL_SPIRV
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#else
#include "../runtime/runtime.h"
#endif

#ifdef __CUDACC__
#define MSL_FN __device__ inline
#define MSL_C(function) ::function
#include "names_cuda.h"
#include "half_cuda.h"
#else
#define MSL_FN inline
#define MSL_C(function) __builtin_##function
#ifndef MSL_SPIRV
typedef _Float16 half;
#endif
#endif

#include "vector.h"
#include "math.h"
#ifdef MSL_SPIRV
#include "threads_opencl.h"
#elif defined(__CUDACC__)
#include "threads_cuda.h"
#include "arguments.h"
#else
#include "threads_host.h"
#include "arguments.h"
#endif

// Metal's keywords, from here on; for CUDA, ../src/cuda.rs replaces them. Threadgroup variables have been rewritten to the macro.
#ifdef __CUDACC__
#define MSL_THREADGROUP_REFERENCE(type, name, site) __shared__ type name
#elif defined(MSL_SPIRV)
#define kernel
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
// Keywords of OpenCL that are ordinary names in Metal.
#define global global_
#define local local_
#define generic generic_
#define MSL_THREADGROUP_REFERENCE(type, name, site) __local type& name = *(__local type*)msl_threadgroup_memory(site, sizeof(type))
#else
#define kernel
#define device
#define constant const
#define threadgroup
#define thread
#define MSL_THREADGROUP_REFERENCE(type, name, site) type& name = *(type*)msl_threadgroup_memory(site, sizeof(type), #name)
#endif

#if defined(MSL_SPIRV) || defined(__CUDACC__)
#define MSL_THREADGROUP_BYTES(bytes) static_assert((bytes) <= 32768, "more than 32 KiB of threadgroup memory")
#else
#define MSL_THREADGROUP_BYTES(bytes)
#endif
