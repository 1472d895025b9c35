// Codes of the rows of x [rows, columns] with stochastic rounding; see wgsl/bitnet/quantize_gradients.wgsl.
struct Params { uint rows, columns, lanes, seed_low, seed_high; };

struct Stochastic {
    device float* scales;
    uint2 seed;

    float2 grid(uint bits) const {
        if (bits >= 0x7f800000u) return float2(as_type<float>(0x7fc00000u), 0.0f);
        return float2(absmax_scale(as_type<float>(bits), 127.0f), 0.0f);
    }
    void store(uint row, float2 grid) const { scales[row] = grid.x; }
    uint4 noise(uint word) const { return philox(uint4(word, 0u, 0u, 0u), seed); }
    // In units of 2^-24, as integers: a compiler may fuse a product with what is added to it.
    int code(float v, float2 grid, uint noise) const {
        const int units = int(rint(clamp(v * grid.x, -127.0f, 127.0f) * 16777216.0f));
        return (units + int(noise >> 8)) >> 24;
    }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_gradients(
    constant Params& params   [[buffer(0)]],
    device const X* x         [[buffer(1)]],
    device uint* codes        [[buffer(2)]],
    device float* scales      [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup uint tree[THREADS];
    threadgroup float2 grids[THREADS];
    const uint first_row = flat_group(group, groups) * (THREADS / params.lanes);
    if (first_row >= params.rows) return;
    const Stochastic quantizer = {scales, uint2(params.seed_low, params.seed_high)};
    quantize_rows(quantizer, x, codes, first_row, params.rows, params.columns, params.lanes, tree, grids, local);
}
