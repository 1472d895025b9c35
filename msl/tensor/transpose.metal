// y[b, c, r] = x[b, r, c]: see wgsl/tensor/transpose.wgsl.
struct Params { uint rows, columns; };

#define PITCH 33

[[max_total_threads_per_threadgroup(THREADS)]]
kernel void transpose(
    constant Params& params  [[buffer(0)]],
    device const X* x        [[buffer(1)]],
    device X* y              [[buffer(2)]],
    uint3 group  [[threadgroup_position_in_grid]],
    uint local   [[thread_index_in_threadgroup]])
{
    threadgroup X staged[32 * PITCH];
    const uint across = local % WG_X, down = local / WG_X;
    const uint first_row = group.y * TILE_Y, first_column = group.x * TILE_X;
    const uint base = group.z * params.rows * params.columns;
    const uint column = first_column + across;
    for (uint i = down; i < TILE_Y; i += WG_Y) {
        const uint row = first_row + i;
        if (row < params.rows && column < params.columns) staged[i * PITCH + across] = x[base + row * params.columns + column];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint row = first_row + across;
    for (uint i = down; i < TILE_X; i += WG_Y) {
        const uint of_y = first_column + i;
        if (row < params.rows && of_y < params.columns) y[base + of_y * params.rows + row] = staged[across * PITCH + i];
    }
}
