// y[b, i, j] = Σ left(b, i, l)·right(b, l, j) over l, on top of y if `add` is not 0. A part before brings both functions, and says of each whether what
// lies side by side are the elements of a row. A workgroup makes a tile of TILE_Y × TILE_X: it stages DEPTH of l at a time in workgroup memory, and a
// thread makes 4 × 4 of it, in columns that lie 16 apart, so that neighbours write side by side.
// A row of staged columns is one longer, so that writing across rows meets no bank twice.
const A_PITCH: u32 = TILE_Y + 1u;
const B_PITCH: u32 = TILE_X + 1u;
var<workgroup> staged_a: array<f32, DEPTH * (TILE_Y + 1u)>;
var<workgroup> staged_b: array<f32, DEPTH * (TILE_X + 1u)>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn matmul(group: Group, ids: Ids) {
    let first_row = group.id.y * TILE_Y;
    let first_column = group.id.x * TILE_X;
    let batch = group.id.z;
    let across = ids.local % 16u;
    let down = ids.local / 16u;
    var sums: array<vec4<f32>, 4>;
    for (var first = 0u; first < params.k; first += DEPTH) {
        // Neighbouring threads read what lies side by side.
        for (var i = ids.local; i < TILE_Y * DEPTH; i += THREADS) {
            let by_row = vec2<u32>(i / DEPTH, i % DEPTH);
            let by_column = vec2<u32>(i % TILE_Y, i / TILE_Y);
            let at = select(by_column, by_row, left_by_row());
            let row = first_row + at.x;
            let l = first + at.y;
            var v = 0.0;
            if row < params.m && l < params.k { v = left(batch, row, l); }
            staged_a[at.y * A_PITCH + at.x] = v;
        }
        for (var i = ids.local; i < TILE_X * DEPTH; i += THREADS) {
            let by_row = vec2<u32>(i / TILE_X, i % TILE_X);
            let by_column = vec2<u32>(i % DEPTH, i / DEPTH);
            let at = select(by_column, by_row, right_by_row());
            let l = first + at.x;
            let column = first_column + at.y;
            var v = 0.0;
            if l < params.k && column < params.n { v = right(batch, l, column); }
            staged_b[at.x * B_PITCH + at.y] = v;
        }
        workgroupBarrier();
        for (var l = 0u; l < DEPTH; l += 1u) {
            let of_a = l * A_PITCH + 4u * down;
            let of_b = l * B_PITCH + across;
            let beside = vec4<f32>(staged_b[of_b], staged_b[of_b + 16u], staged_b[of_b + 32u], staged_b[of_b + 48u]);
            sums[0] = fma(vec4<f32>(staged_a[of_a]), beside, sums[0]);
            sums[1] = fma(vec4<f32>(staged_a[of_a + 1u]), beside, sums[1]);
            sums[2] = fma(vec4<f32>(staged_a[of_a + 2u]), beside, sums[2]);
            sums[3] = fma(vec4<f32>(staged_a[of_a + 3u]), beside, sums[3]);
        }
        workgroupBarrier();
    }
    let y_first = batch * params.m * params.n;
    for (var r = 0u; r < 4u; r += 1u) {
        let row = first_row + 4u * down + r;
        for (var c = 0u; c < 4u; c += 1u) {
            let column = first_column + across + 16u * c;
            if row < params.m && column < params.n {
                let at = y_first + row * params.n + column;
                if params.add != 0u { y[at] = Y(f32(y[at]) + sums[r][c]); } else { y[at] = Y(sums[r][c]); }
            }
        }
    }
}
