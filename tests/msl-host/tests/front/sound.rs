//! Sound constructs: a name, a piece of `kernels/sound.metal`, and what takes its place.

use crate::faults::{FILE, KERNEL};

pub const SOUND: &[(&str, &str, &str)] = &[
    ("local variable named quad", KERNEL, "uint quad = lane / 4u; sum += float(quad);"),
    ("parameter named quad", FILE, "static inline uint after(uint quad) { return quad + 1u; }"),
    (
        "names of OpenCL",
        KERNEL,
        "uint global = lane; uint generic = global; sum += float(generic);",
    ),
    (
        "function like one that is not imported",
        FILE,
        "static inline float forward(float v) { return v; }",
    ),
    ("kernel named transpose", "kernel void sound(", "kernel void transpose("),
    ("macro after the library", FILE, "#define C half\nstatic inline C one() { return C(1.0f); }"),
    (
        "names imported one by one",
        FILE,
        "using metal::fma; using metal::float4; using metal::mem_flags;",
    ),
    (
        "qualified names",
        KERNEL,
        "sum = metal::fma(sum, 2.0f, metal::precise::exp(sum)); metal::float4 v = float4(sum); (void)v;",
    ),
    (
        "pragmas",
        KERNEL,
        "#pragma clang diagnostic ignored \"-Wunknown-pragmas\"\n#pragma METAL fp contract(off)\n",
    ),
    (
        "unrolled loop",
        KERNEL,
        "#pragma unroll\n    for (uint i = 0; i < 4; ++i) sum += float(PRIMES[i]);",
    ),
    (
        "pointer casts within an address space",
        KERNEL,
        "threadgroup float2* pairs = (threadgroup float2*)staged; pairs[local] = float2(sum);",
    ),
    (
        "word written by its address",
        KERNEL,
        "threadgroup uint* bits = (threadgroup uint*)staged; bits[local] = as_type<uint>(sum);",
    ),
    ("reference of thread", KERNEL, "thread float& same = sum; same += 1.0f;"),
    (
        "array of thread to a function",
        FILE,
        "static inline void fill(thread float* v) { v[0] = 1.0f; } static inline float use() { float v[2]; fill(v); return v[0]; }",
    ),
    (
        "object with an operator",
        FILE,
        "struct Twice { float operator()(float v) const { return 2.0f * v; } }; static inline float use() { return Twice()(1.0f); }",
    ),
    (
        "class template",
        FILE,
        "template <typename T, uint N> struct Few { T v[N]; }; static inline float use() { Few<float, 2> f; f.v[0] = 1.0f; return f.v[0]; }",
    ),
    (
        "overloads",
        FILE,
        "static inline float give(float v) { return v; } static inline uint give(uint v) { return v; } static inline uint2 give(uint2 v) { return uint2(give(v.x), give(v.y)); }",
    ),
    (
        "scalar and vector",
        KERNEL,
        "float4 v = 2.0f * float4(sum) + 1.0f; v *= 2.0f; v += v.x; sum = v.y;",
    ),
    (
        "vector by vector of another type, explicitly",
        KERNEL,
        "uint4 v = uint4(int4(1)); float4 f = float4(as_type<char4>(v.x)); sum += f.z;",
    ),
    (
        "components",
        KERNEL,
        "float4 v = float4(0.0f); v.xz = float2(1.0f, sum); v[2] = v.w; sum = v.rgba.a;",
    ),
    (
        "shift by a vector",
        KERNEL,
        "uint4 v = uint4(lane) >> uint4(0u, 8u, 16u, 24u); sum += float(v.w & 1u);",
    ),
    (
        "clamp of vectors",
        KERNEL,
        "float4 v = clamp(rint(float4(sum)), -1.0f, 1.0f); int4 i = clamp(int4(v), int4(-1), int4(1)); sum += float(i.x);",
    ),
    (
        "half arithmetic",
        KERNEL,
        "half v = half(sum) * 2.0h + 1.0h; half2 w = half2(v, 0.5h); sum += float(w.x + w.y);",
    ),
    (
        "relational functions",
        KERNEL,
        "if (all(float4(sum) == float4(0.0f)) || any(bool2(true, false))) sum = select(sum, 1.0f, isnan(sum));",
    ),
    ("literals", KERNEL, "sum += 1e-5f + 2.0f + .5f + float(1.0h) + float(0xffu + 1ul + 7l);"),
    (
        "fill of matrices",
        KERNEL,
        "simdgroup_float8x8 zeros[2]; for (uint i = 0; i < 2; ++i) zeros[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);",
    ),
    (
        "matrix to a function",
        FILE,
        "static inline void keep(thread simdgroup_float8x8& m, threadgroup float* to) { simdgroup_store(m, to, 8); }",
    ),
    (
        "SIMD-group functions",
        KERNEL,
        "sum += simd_max(sum) + simd_shuffle_xor(sum, ushort(lane)) + float(simd_sum(lane)) + simd_broadcast(sum, 0); if (simd_all(sum > 0.0f)) sum = 1.0f;",
    ),
    ("exchange of vectors", KERNEL, "float4 v = simd_shuffle_down(float4(sum), 2); sum += v.x;"),
    ("deleted function", FILE, "struct Only { Only(const thread Only&) = delete; };"),
    (
        "enum, switch, union",
        FILE,
        "enum Kind { First, Second }; union Word { uint bits; float v; }; static inline uint of(Kind k) { switch (k) { case First: return 1u; default: return 2u; } }",
    ),
    (
        "constexpr",
        FILE,
        "constant constexpr uint SIDE = 8u; static inline uint use() { constexpr uint twofold = 2u * SIDE; return twofold; }",
    ),
    (
        "index of 16 bits",
        "uint lane     [[thread_index_in_simdgroup]]",
        "ushort lane   [[thread_index_in_simdgroup]]",
    ),
];
