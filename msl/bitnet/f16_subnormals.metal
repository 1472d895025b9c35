// Does widening a half to a float keep subnormals? y[0] = Σ_f (low_f + 2·high_f)·4^f·2^-24, and smaller where they are flushed. One thread. More in
// wgsl/bitnet/f16_subnormals.wgsl.
using metal::fma;

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void f16_subnormals(device const uint* word [[buffer(0)]], device float* y [[buffer(1)]])
{
    float sum = 0.0f;
    for (uint f = 0; f < 4; ++f) {
        const half2 h = as_type<half2>(word[0] & (0x00030003u << (2 * f)));
        sum = fma(float(h.x), 1.0f, fma(float(h.y), 2.0f, sum));
    }
    y[0] = sum;
}
