// y[r, c] = x[r, c], 0 for c >= columns: x [rows, columns], y [rows, padded]. One thread per output.
struct Params { uint rows, columns, padded; };

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void pad_rows(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device X* y              [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    const uint index = flat_thread(group, groups, local);
    const uint row = index / params.padded;
    if (row >= params.rows) return;
    const uint column = index % params.padded;
    y[index] = column < params.columns ? x[row * params.columns + column] : X(0.0f);
}
