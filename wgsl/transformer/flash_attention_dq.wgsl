// dq_i = scale·Σ_j P_ij·(dy_i·v_j - delta_i)·k_j with P_ij = e^(scale·q_i·k_j - lse_i): the gradient of flash_attention.wgsl for q, where dy is
// that of y and delta_i = y_i·dy_i. Shapes, tiles and workgroups are as there; the result is added to dq if `add` is not 0.
struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> q: array<X>;
@group(0) @binding(1) var<storage, read> k: array<X>;
@group(0) @binding(2) var<storage, read> v: array<X>;
@group(0) @binding(3) var<storage, read> dy: array<X>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dq: array<X>;

const QUERIES: u32 = 0u;
const KEYS: u32 = 1u;
const VALUES: u32 = 2u;
const SLOPES: u32 = 3u;
fn element(tensor: u32, at: u32) -> f32 {
    if tensor == QUERIES { return f32(q[at]); }
    if tensor == KEYS { return f32(k[at]); }
    if tensor == VALUES { return f32(v[at]); }
    return f32(dy[at]);
}

fn store(tensor: u32, at: u32, v: f32) {
    let slope = params.scale * v;
    if params.add != 0u { dq[at] = X(f32(dq[at]) + slope); } else { dq[at] = X(slope); }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn flash_attention_dq(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let own = strip(index);
    let head = own.head;
    let row0 = own.row0;
    let d0 = own.d0;
    let of_q = head * params.tokens * params.dim;
    let of_k = head / params.sharing * params.tokens * params.dim;
    let first = row0 + ids.local / 16u * 4u;
    var logarithm = vec4<f32>();
    var mean = vec4<f32>();
    for (var r = 0u; r < 4u; r += 1u) {
        if first + r < params.tokens {
            logarithm[r] = lse[head * params.tokens + first + r];
            mean[r] = delta[head * params.tokens + first + r];
        }
    }

    var low = array<vec4<f32>, 4>();
    var high = array<vec4<f32>, 4>();
    let end = select(params.tokens, min(params.tokens, row0 + ROWS), params.causal != 0u);
    for (var column0 = 0u; column0 < end; column0 += COLUMNS) {
        var s = scores(QUERIES, of_q, row0, KEYS, of_k, column0, ids.local);
        var slopes = scores(SLOPES, of_q, row0, VALUES, of_k, column0, ids.local);
        for (var c = 0u; c < 2u; c += 1u) {
            let key = column0 + ids.local % 16u + 16u * c;
            for (var r = 0u; r < 4u; r += 1u) {
                var weight = 0.0;
                if sees(first + r, key) { weight = exp_negative(s[c][r] * params.scale - logarithm[r]); }
                slopes[c][r] = weight * (slopes[c][r] - mean[r]);
            }
        }
        put(slopes, ids.local);
        add_weighted(KEYS, of_k, column0, d0, ids.local, &low);
        if d0 + WIDTH < params.dim { add_weighted(KEYS, of_k, column0, d0 + WIDTH, ids.local, &high); }
    }
    write(QUERIES, own, d0, low, ids.local);
    write(QUERIES, own, d0 + WIDTH, high, ids.local);
}
