// dv_j = Σ_i P_ij·dy_i and dk_j = scale·Σ_i P_ij·(dy_i·v_j - delta_i)·q_i: the gradients of flash_attention.wgsl for k and v, P and delta being
// those of flash_attention_dq.wgsl. A workgroup makes ROWS keys of a key head, and adds over the queries, head after head of those that share it.
// The results are added to dk if `add_k` is not 0, to dv if `add_v` is not.
struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add_k: u32, add_v: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> q: array<X>;
@group(0) @binding(1) var<storage, read> k: array<X>;
@group(0) @binding(2) var<storage, read> v: array<X>;
@group(0) @binding(3) var<storage, read> dy: array<X>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dk: array<X>;
@group(0) @binding(7) var<storage, read_write> dv: array<X>;

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
    if tensor == KEYS {
        let slope = params.scale * v;
        if params.add_k != 0u { dk[at] = X(f32(dk[at]) + slope); } else { dk[at] = X(slope); }
    } else {
        if params.add_v != 0u { dv[at] = X(f32(dv[at]) + v); } else { dv[at] = X(v); }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn flash_attention_dkdv(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let own = strip(index);
    let head = own.head;
    let row0 = own.row0;
    let d0 = own.d0;
    let of_k = head * params.tokens * params.dim;
    let first = row0 + ids.local / 16u * 4u;

    var low_k = array<vec4<f32>, 4>();
    var high_k = array<vec4<f32>, 4>();
    var low_v = array<vec4<f32>, 4>();
    var high_v = array<vec4<f32>, 4>();
    for (var h = head * params.sharing; h < (head + 1u) * params.sharing; h += 1u) {
        let of_q = h * params.tokens * params.dim;
        // Queries before a key do not see it.
        for (var column0 = select(0u, row0, params.causal != 0u); column0 < params.tokens; column0 += COLUMNS) {
            var chances = scores(KEYS, of_k, row0, QUERIES, of_q, column0, ids.local);
            var slopes = scores(VALUES, of_k, row0, SLOPES, of_q, column0, ids.local);
            for (var c = 0u; c < 2u; c += 1u) {
                let query = column0 + ids.local % 16u + 16u * c;
                var logarithm = 0.0;
                var mean = 0.0;
                if query < params.tokens {
                    logarithm = lse[h * params.tokens + query];
                    mean = delta[h * params.tokens + query];
                }
                for (var r = 0u; r < 4u; r += 1u) {
                    var weight = 0.0;
                    if sees(query, first + r) { weight = exp_negative(chances[c][r] * params.scale - logarithm); }
                    chances[c][r] = weight;
                    slopes[c][r] = weight * (slopes[c][r] - mean);
                }
            }
            put(chances, ids.local);
            add_weighted(SLOPES, of_q, column0, d0, ids.local, &low_v);
            if d0 + WIDTH < params.dim { add_weighted(SLOPES, of_q, column0, d0 + WIDTH, ids.local, &high_v); }
            put(slopes, ids.local);
            add_weighted(QUERIES, of_q, column0, d0, ids.local, &low_k);
            if d0 + WIDTH < params.dim { add_weighted(QUERIES, of_q, column0, d0 + WIDTH, ids.local, &high_k); }
        }
    }
    write(KEYS, own, d0, low_k, ids.local);
    write(KEYS, own, d0 + WIDTH, high_k, ids.local);
    write(VALUES, own, d0, low_v, ids.local);
    write(VALUES, own, d0 + WIDTH, high_v, ids.local);
}
