// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0, for devices that gain nothing by workgroup memory: no thread waits for
// another, and no load has a condition. A thread makes four columns of TILE_Y rows. All threads of a workgroup have the same rows, so what they load of
// the left side is the same.
@group(0) @binding(0) var<storage, read> a: array<X>;
@group(0) @binding(1) var<storage, read> b: array<X>;

// From one of a side's `count` rows or columns to the next, and from an element of the depth to the next.
fn strides(along_k: bool, count: u32) -> vec2<u32> { return select(vec2<u32>(1u, count), vec2<u32>(params.k, 1u), along_k); }

// Four elements of a column.
fn quad(at: u32, step: u32) -> vec4<f32> {
    return vec4<f32>(f32(b[at]), f32(b[at + step]), f32(b[at + 2u * step]), f32(b[at + 3u * step]));
}

fn left(at: u32) -> vec4<f32> { return vec4<f32>(f32(a[at])); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul_direct(group: Group, ids: Ids) {
    let column = group.id.x * TILE_X + 4u * ids.local;
    let row = group.id.y * TILE_Y;
    let batch = group.id.z;
    let of_left = strides(left_along_k(), params.m);
    let of_right = strides(right_along_k(), params.n);
    // A column or row beyond the last has the place of the last, and is not stored.
    let columns = min(vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.n - 1u));
    let of_columns = right_start(batch) * right_size().y + columns * of_right.x;
    let of_matrix = left_start(batch) * left_size().y;
    var sums = array<vec4<f32>, TILE_Y>();
    var l = 0u;
    for (; l + 4u <= params.k; l += 4u) {
        let at = of_columns + l * of_right.y;
        let step = of_right.y;
        let rows = transposed(Block(quad(at.x, step), quad(at.y, step), quad(at.z, step), quad(at.w, step)));
        for (var i = 0u; i < TILE_Y; i += 1u) {
            let of_row = of_matrix + min(row + i, params.m - 1u) * of_left.x + l * of_left.y;
            var sum = fma(left(of_row), rows.x, sums[i]);
            sum = fma(left(of_row + of_left.y), rows.y, sum);
            sum = fma(left(of_row + 2u * of_left.y), rows.z, sum);
            sums[i] = fma(left(of_row + 3u * of_left.y), rows.w, sum);
        }
    }
    for (; l < params.k; l += 1u) {
        let at = of_columns + l * of_right.y;
        let line = vec4<f32>(f32(b[at.x]), f32(b[at.y]), f32(b[at.z]), f32(b[at.w]));
        for (var i = 0u; i < TILE_Y; i += 1u) {
            sums[i] = fma(left(of_matrix + min(row + i, params.m - 1u) * of_left.x + l * of_left.y), line, sums[i]);
        }
    }
    for (var i = 0u; i < TILE_Y; i += 1u) { store_quad(batch, row + i, column, sums[i]); }
}
