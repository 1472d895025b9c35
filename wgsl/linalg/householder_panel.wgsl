// Householder's QR factorization of a panel: `width` columns of A [m, n] from `first` on. Column j becomes that of R by H = I - τ·v·vᵀ, which is
// applied to the columns right of it. v, with v[j] = 1 and zeros above, goes to V [m, k]. T, upper triangular, joins the H of the panel: H₁·H₂ ... =
// I - V·T·Vᵀ (Schreiber and Van Loan 1989, A storage-efficient WY representation). Where a column is already zero below the diagonal, H = I, so τ =
// 0. One workgroup per matrix; t is [.., panels, edge, edge], zero beyond `width`; its edge is BLOCK, or k where that is less.
struct Params { matrices: u32, m: u32, n: u32, k: u32, first: u32, width: u32, panels: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> v: array<f32>;
@group(0) @binding(2) var<storage, read_write> t: array<f32>;

const LANES: u32 = THREADS / BLOCK;
var<workgroup> factor: array<f32, BLOCK * BLOCK>;
// Products of the column's v with the others of the panel: by each lane, and in all.
var<workgroup> shares: array<f32, THREADS>;
var<workgroup> products: array<f32, BLOCK>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn householder_panel(group: Group, ids: Ids) {
    let matrix = flat_group(group);
    if matrix >= params.matrices { return; }
    let m = params.m;
    let a_base = matrix * m * params.n + params.first;
    let v_base = matrix * m * params.k + params.first;
    // A thread has one column of the panel, and every LANES-th row.
    let c = ids.local % BLOCK;
    let lane = ids.local / BLOCK;
    for (var i = ids.local; i < BLOCK * BLOCK; i += THREADS) { factor[i] = 0.0; }

    for (var j = 0u; j < params.width; j += 1u) {
        let pivot = params.first + j;
        // The norm of the column from the pivot down, of numbers scaled by a power of two.
        var top = 0u;
        for (var row = pivot + ids.local; row < m; row += THREADS) { top = max(top, magnitude(a[a_base + row * params.n + j])); }
        top = tree_max(top, ids.local);
        let scale = down_scale(top);
        let alpha = a[a_base + pivot * params.n + j] * scale;
        var squares = 0.0;
        for (var row = pivot + 1u + ids.local; row < m; row += THREADS) {
            let u = a[a_base + row * params.n + j] * scale;
            squares += u * u;
        }
        squares = fixed_tree(squares, ids.local);
        // The sign that makes no difference of near numbers.
        let norm = sqrt(alpha * alpha + squares);
        let beta = select(norm, -norm, alpha >= 0.0);
        let trivial = squares == 0.0;
        let tau = select((beta - alpha) / beta, 0.0, trivial);
        let inverse = select(1.0 / (alpha - beta), 0.0, trivial);
        for (var row = ids.local; row < m; row += THREADS) {
            let at = a_base + row * params.n + j;
            var reflected = 0.0;
            if row == pivot {
                reflected = 1.0;
                if !trivial { a[at] = beta * up_scale(top); }
            } else if row > pivot {
                reflected = a[at] * scale * inverse;
                a[at] = 0.0;
            }
            v[v_base + row * params.k + j] = reflected;
        }
        storageBarrier();
        workgroupBarrier();

        // vᵀ times the columns after this one, and the V of those before it.
        var share = 0.0;
        if c < params.width && c != j {
            for (var row = pivot + lane; row < m; row += LANES) {
                var other = 0.0;
                if c > j { other = a[a_base + row * params.n + c]; } else { other = v[v_base + row * params.k + c]; }
                share += v[v_base + row * params.k + j] * other;
            }
        }
        shares[ids.local] = share;
        workgroupBarrier();
        if lane == 0u {
            var product = 0.0;
            for (var l = 0u; l < LANES; l += 1u) { product += shares[l * BLOCK + c]; }
            products[c] = product;
        }
        workgroupBarrier();
        if c > j && c < params.width {
            let step = tau * products[c];
            for (var row = pivot + lane; row < m; row += LANES) { a[a_base + row * params.n + c] -= step * v[v_base + row * params.k + j]; }
        }
        if lane == 0u {
            // Column j of T is -τ·T·Vᵀv above the diagonal.
            var sum = 0.0;
            for (var l = c; l < j; l += 1u) { sum += factor[c * BLOCK + l] * products[l]; }
            if c <= j { factor[c * BLOCK + j] = select(-tau * sum, tau, c == j); }
        }
        storageBarrier();
        workgroupBarrier();
    }
    let edge = min(BLOCK, params.k);
    let t_base = (matrix * params.panels + params.first / BLOCK) * edge * edge;
    for (var i = ids.local; i < edge * edge; i += THREADS) { t[t_base + i] = factor[i / edge * BLOCK + i % edge]; }
}
