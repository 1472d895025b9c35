// Codes of the rows of x [rows, columns] in 4 bits; see wgsl/bitnet/quantize_activations_4bit.wgsl.
struct Params { uint rows, columns, lanes, words; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void quantize_activations_4bit(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device uint* codes       [[buffer(2)]],
    device float* scales     [[buffer(3)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup uint tree[THREADS];
    const uint row = flat_group(group, groups) * (THREADS / params.lanes) + local / params.lanes;
    const uint lane = local % params.lanes;
    const uint first = row * params.columns;
    // Threads beyond the last row wait for the others.
    const uint columns = row < params.rows ? params.columns : 0u;
    uint bits = identity();
    for (uint i = lane; i < columns; i += params.lanes) bits = combine(bits, load(float(x[first + i])));
    bits = over_lanes(bits, params.lanes, 1u, tree, local);
    if (row >= params.rows) return;
    const bool finite = bits < 0x7f800000u;
    const float scale = absmax_scale(as_type<float>(finite ? bits : 0u), 7.0f);
    if (lane == 0) scales[row] = as_type<float>(finite ? as_type<uint>(scale) : 0x7fc00000u);
    for (uint word = lane; word < params.words; word += params.lanes) {
        uint packed = 0;
        for (uint j = 0; finite && j < 8u && 8u * word + j < columns; ++j) {
            const int code = int(clamp(rint(float(x[first + 8u * word + j]) * scale), -8.0f, 7.0f));
            packed |= (uint(code) & 15u) << (4u * j);
        }
        codes[row * params.words + word] = packed;
    }
}
