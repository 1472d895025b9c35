// Codes of the rows of x [rows, columns]: clamp(round(x·a) + z, -128, 127), where a = 127.5 / max((high - low) / 2, 1e-5), z = round(-low·a) - 128, and
// low <= 0 <= high are the extremes of the row and 0.
struct Params { rows: u32, columns: u32, lanes: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> zero_points: array<i32>;

fn grid_of(extremes: vec2<u32>) -> vec2<f32> {
    // Keys from that of infinity on.
    // A NaN by its bits, which are no constant: of those compilers refuse it.
    let nan = 0x7fc00000u | min(extremes.x, 1u);
    if max(extremes.x, extremes.y) >= 0xff800000u { return vec2<f32>(bitcast<f32>(nan), 0.0); }
    let high = from_key(extremes.x);
    let minus_low = from_key(extremes.y);
    // Halved first, since the sum may be no float.
    let scale = absmax_scale(0.5 * high + 0.5 * minus_low, 127.5);
    return vec2<f32>(scale, clamp(round(minus_low * scale) - 128.0, -128.0, 127.0));
}

fn store(row: u32, grid: vec2<f32>) {
    scales[row] = grid.x;
    zero_points[row] = i32(grid.y);
}

fn noise(word: u32) -> vec4<u32> { return vec4<u32>(); }

fn code_of(v: f32, grid: vec2<f32>, noise: u32) -> i32 { return i32(clamp(round(v * grid.x) + grid.y, -128.0, 127.0)); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_activations_with_zero_point(group: Group, ids: Ids) {
    let first_row = flat_group(group) * (THREADS / params.lanes);
    if first_row < params.rows { quantize_rows(first_row, ids); }
}
