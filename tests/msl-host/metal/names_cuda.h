// Renames Metal's global names that CUDA defines too.
#pragma once
#include <cuda_fp16.h>

#define half msl_half
#define char2 msl_char2
#define char3 msl_char3
#define char4 msl_char4
#define uchar2 msl_uchar2
#define uchar3 msl_uchar3
#define uchar4 msl_uchar4
#define int2 msl_int2
#define int3 msl_int3
#define int4 msl_int4
#define uint2 msl_uint2
#define uint3 msl_uint3
#define uint4 msl_uint4
#define ulong2 msl_ulong2
#define ulong3 msl_ulong3
#define ulong4 msl_ulong4
#define half2 msl_half2
#define half3 msl_half3
#define half4 msl_half4
#define float2 msl_float2
#define float3 msl_float3
#define float4 msl_float4
#define min msl_min
#define max msl_max
#define clamp msl_clamp
#define abs msl_abs
#define fabs msl_fabs
#define sqrt msl_sqrt
#define rsqrt msl_rsqrt
#define exp msl_exp
#define exp2 msl_exp2
#define log msl_log
#define log2 msl_log2
#define trunc msl_trunc
#define sign msl_sign
#define clz msl_clz
#define popcount msl_popcount
#define ctz msl_ctz
#define reverse_bits msl_reverse_bits
#define mulhi msl_mulhi
#define rint msl_rint
#define fma msl_fma
#define select msl_select
