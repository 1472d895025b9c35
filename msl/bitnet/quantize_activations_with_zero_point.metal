// Codes of the rows of x [rows, columns] with a zero point; see wgsl/bitnet/quantize_activations_with_zero_point.wgsl.
struct Params { uint rows, columns, lanes; };

struct Affine {
    device float* scales;
    device int* zero_points;

    float2 grid(uint2 extremes) const {
        if (max(extremes.x, extremes.y) >= 0xff800000u) return float2(as_type<float>(0x7fc00000u), 0.0f);
        const float high = from_key(extremes.x);
        const float minus_low = from_key(extremes.y);
        const float scale = absmax_scale(0.5f * high + 0.5f * minus_low, 127.5f);
        return float2(scale, clamp(rint(minus_low * scale) - 128.0f, -128.0f, 127.0f));
    }
    void store(uint row, float2 grid) const {
        scales[row] = grid.x;
        zero_points[row] = int(grid.y);
    }
    // Nothing is random.
    uint4 noise(uint) const { return uint4(0u); }
    int code(float v, float2 grid, uint) const { return int(clamp(rint(v * grid.x) + grid.y, -128.0f, 127.0f)); }
};

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_activations_with_zero_point(
    constant Params& params   [[buffer(0)]],
    device const X* x         [[buffer(1)]],
    device uint* codes        [[buffer(2)]],
    device float* scales      [[buffer(3)]],
    device int* zero_points   [[buffer(4)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup uint2 tree[THREADS];
    threadgroup float2 grids[THREADS];
    const uint first_row = flat_group(group, groups) * (THREADS / params.lanes);
    if (first_row >= params.rows) return;
    const Affine quantizer = {scales, zero_points};
    quantize_rows(quantizer, x, codes, first_row, params.rows, params.columns, params.lanes, tree, grids, local);
}
