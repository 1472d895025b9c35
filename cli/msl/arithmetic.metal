// y[i] = the bits of an operation on a[i], b[i] and c[i]; the same operations as in wgsl/arithmetic.wgsl.
using metal::exp; using metal::fma; using metal::rsqrt; using metal::sqrt;

struct Params { uint length, operation, zero; };

// A number that passes through an operation on its bits: what kernels do to keep a product apart from what follows.
static inline float apart(float v, uint zero) { return as_type<float>(as_type<uint>(v) | zero); }

static inline uint result(float x, float factor, float term, uint operation, uint zero) {
    switch (operation) {
        case 0: return as_type<uint>(x * factor);
        case 1: return as_type<uint>(x + factor);
        case 2: return as_type<uint>(x / factor);
        case 3: return as_type<uint>(sqrt(x));
        case 4: return as_type<uint>(rsqrt(x));
        case 5: return as_type<uint>(exp(x));
        case 6: return as_type<uint>((x * factor) * term);
        case 7: return as_type<uint>(apart(x * factor, zero) * term);
        case 8: return as_type<uint>(x * factor + term);
        case 9: return as_type<uint>(apart(x * factor, zero) + term);
        case 10: return as_type<uint>(fma(x, factor, term));
        case 11: return x != x ? 1u : 0u;
        case 12: return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u ? 1u : 0u;
        case 13: return as_type<uint>(float(as_type<half2>(as_type<uint>(x)).x));
        default: return as_type<uint>(half2(half(x), half(0.0f)));
    }
}

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void arithmetic(
    constant Params& params [[buffer(0)]],
    device const float* a [[buffer(1)]],
    device const float* b [[buffer(2)]],
    device const float* c [[buffer(3)]],
    device uint* y [[buffer(4)]],
    uint id [[thread_position_in_grid]])
{
    if (id < params.length) y[id] = result(a[id], b[id], c[id], params.operation, params.zero);
}
