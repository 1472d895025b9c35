// The gradient of A = U·Σ·Vᵀ between U and Vᵀ, for every matrix of a batch: dσ on the diagonal, and elsewhere
//     y[i, j] = ((u[i, j] - u[j, i])·σ_j + σ_i·(v[i, j] - v[j, i])) / (σ_j² - σ_i²)
// with u = Uᵀ·dU and v = Vᵀ·dV. One thread per element of y [.., k, k].
struct Params { length: u32, k: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> u: array<f32>;
@group(0) @binding(1) var<storage, read> v: array<f32>;
@group(0) @binding(2) var<storage, read> s: array<f32>;
@group(0) @binding(3) var<storage, read> ds: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_core(group: Group, ids: Ids) {
    let index = flat_thread(group, ids);
    if index >= params.length { return; }
    let first = index / (params.k * params.k) * params.k;
    let row = index / params.k % params.k;
    let column = index % params.k;
    if row == column { y[index] = ds[first + row]; return; }
    let mirrored = (first + column) * params.k + row;
    let s_row = s[first + row];
    let s_column = s[first + column];
    let both = (u[index] - u[mirrored]) * s_column + s_row * (v[index] - v[mirrored]);
    y[index] = both / ((s_column - s_row) * (s_column + s_row));
}
