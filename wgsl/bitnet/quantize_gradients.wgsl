// Codes of the rows of x [rows, columns] by a = 127 / max(max|x|, 1e-5) of the row, with stochastic rounding: floor(x·a + u), where u is random, at least
// 0 and below 1. It follows from the seed and the place of the number alone.
struct Params { rows: u32, columns: u32, lanes: u32, seed_low: u32, seed_high: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;

fn grid_of(bits: u32) -> vec2<f32> {
    let finite = bits < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, bits, finite)), 127.0);
    return vec2<f32>(bitcast<f32>(select(0x7fc00000u, bitcast<u32>(scale), finite)), 0.0);
}

fn store(row: u32, grid: vec2<f32>) { scales[row] = grid.x; }

fn noise(word: u32) -> vec4<u32> { return philox(vec4<u32>(word, 0u, 0u, 0u), vec2<u32>(params.seed_low, params.seed_high)); }

// In units of 2^-24, as integers: a compiler may fuse a product with what is added to it.
fn code_of(v: f32, grid: vec2<f32>, noise: u32) -> i32 {
    let units = i32(round(clamp(v * grid.x, -127.0, 127.0) * 16777216.0));
    return (units + i32(noise >> 8u)) >> 24u;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_gradients(group: Group, ids: Ids) {
    let first_row = flat_group(group) * (THREADS / params.lanes);
    if first_row < params.rows { quantize_rows(first_row, ids); }
}
