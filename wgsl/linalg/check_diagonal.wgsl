// status: the first 1-based column j of a triangular matrix A whose diagonal element is nothing but rounding, |A[j, j]| <= tolerance·|column j down
// to there|, or NOT_FINITE. A tolerance of 0 finds zeros. Rows of A have n elements, and matrices a_matrix. One workgroup per matrix.
struct Params { matrices: u32, n: u32, a_matrix: u32, tolerance: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> status: array<u32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn check_diagonal(group: Group, ids: Ids) {
    let matrix = flat_group(group);
    if matrix >= params.matrices { return; }
    // Of what is wrong the largest number counts: NOT_FINITE, or else n - j for the first column.
    var worst = 0u;
    for (var j = ids.local; j < params.n; j += THREADS) {
        let base = matrix * params.a_matrix + j;
        let pivot = a[base + j * params.n];
        var norm = 0.0;
        if params.tolerance > 0.0 {
            var top = 0u;
            for (var i = 0u; i <= j; i += 1u) { top = max(top, magnitude(a[base + i * params.n])); }
            for (var i = 0u; i <= j; i += 1u) {
                let v = a[base + i * params.n] * down_scale(top);
                norm += v * v;
            }
            norm = sqrt(norm) * up_scale(top);
        }
        if magnitude(pivot) >= 0x7f800000u {
            worst = NOT_FINITE;
        } else if abs(pivot) <= params.tolerance * norm {
            worst = max(worst, params.n - j);
        }
    }
    worst = tree_max(worst, ids.local);
    if ids.local == 0u { status[matrix] = select(params.n + 1u - worst, worst, worst == 0u || worst == NOT_FINITE); }
}
