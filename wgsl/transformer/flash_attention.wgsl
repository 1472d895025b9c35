// y = Σ_j e^(s_j)·v_j / Σ_j e^(s_j), s_j = scale·q·k_j, and lse = ln Σ_j e^(s_j), for every query of every head: q and y are [heads, tokens, dim],
// lse [heads, tokens], k and v [heads / sharing, tokens, dim]. With `causal`, a query sees the keys up to its own place. The result is added to y
// if `add` is not 0. Scores exist a tile at a time ("FlashAttention-2", Dao 2023, arXiv:2307.08691). A workgroup makes ROWS queries of a head.
struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> q: array<X>;
@group(0) @binding(1) var<storage, read> k: array<X>;
@group(0) @binding(2) var<storage, read> v: array<X>;
@group(0) @binding(3) var<storage, read_write> y: array<X>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

const QUERIES: u32 = 0u;
const KEYS: u32 = 1u;
const VALUES: u32 = 2u;
fn element(tensor: u32, at: u32) -> f32 {
    if tensor == QUERIES { return f32(q[at]); }
    if tensor == KEYS { return f32(k[at]); }
    return f32(v[at]);
}

fn store(tensor: u32, at: u32, v: f32) {
    if params.add != 0u { y[at] = X(f32(y[at]) + v); } else { y[at] = X(v); }
}

// Threads of a row while its maximum is sought, and the columns of each.
const PARTS: u32 = THREADS / ROWS;
const PART: u32 = COLUMNS / PARTS;
var<workgroup> shares: array<f32, THREADS>;
var<workgroup> of_row: array<f32, ROWS>;

// The softmax so far of a thread's part of a row: the row's largest score, and the part's Σ e^(s - largest).
struct Softmax { largest: f32, total: f32 }

// Turns the scores in `weights` into e^(s - largest). Leaves in `of_row` what all that was added up before is to be multiplied with.
fn exponentiate(before: Softmax, row0: u32, column0: u32, local: u32) -> Softmax {
    let row = local / PARTS;
    let first = local % PARTS * PART;
    var largest = before.largest;
    for (var c = first; c < first + PART; c += 1u) {
        if sees(row0 + row, column0 + c) { largest = max(largest, weights[c * PITCH + row]); }
    }
    shares[local] = largest;
    workgroupBarrier();
    for (var p = 0u; p < PARTS; p += 1u) { largest = max(largest, shares[row * PARTS + p]); }
    let shrink = exp_negative(before.largest - largest);
    var total = before.total * shrink;
    for (var c = first; c < first + PART; c += 1u) {
        var weight = 0.0;
        if sees(row0 + row, column0 + c) { weight = exp_negative(weights[c * PITCH + row] - largest); }
        weights[c * PITCH + row] = weight;
        total += weight;
    }
    if first == 0u { of_row[row] = shrink; }
    workgroupBarrier();
    return Softmax(largest, total);
}

fn four_rows(local: u32) -> vec4<f32> {
    let down = local / 16u;
    return vec4<f32>(of_row[4u * down], of_row[4u * down + 1u], of_row[4u * down + 2u], of_row[4u * down + 3u]);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn flash_attention(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let own = strip(index);
    let head = own.head;
    let row0 = own.row0;
    let d0 = own.d0;
    let of_q = head * params.tokens * params.dim;
    let of_k = head / params.sharing * params.tokens * params.dim;

    var softmax = Softmax(-3.4028234e38, 0.0);
    var low = array<vec4<f32>, 4>();
    var high = array<vec4<f32>, 4>();
    let end = select(params.tokens, min(params.tokens, row0 + ROWS), params.causal != 0u);
    for (var column0 = 0u; column0 < end; column0 += COLUMNS) {
        var scaled = scores(QUERIES, of_q, row0, KEYS, of_k, column0, ids.local);
        for (var c = 0u; c < 2u; c += 1u) { scaled[c] *= params.scale; }
        put(scaled, ids.local);
        workgroupBarrier();
        softmax = exponentiate(softmax, row0, column0, ids.local);
        let shrink = four_rows(ids.local);
        for (var c = 0u; c < 4u; c += 1u) {
            low[c] *= shrink;
            high[c] *= shrink;
        }
        add_weighted(VALUES, of_k, column0, d0, ids.local, &low);
        if d0 + WIDTH < params.dim { add_weighted(VALUES, of_k, column0, d0 + WIDTH, ids.local, &high); }
    }

    shares[ids.local] = softmax.total;
    workgroupBarrier();
    let row = ids.local / PARTS;
    if ids.local % PARTS == 0u {
        var total = 0.0;
        for (var p = 0u; p < PARTS; p += 1u) { total += shares[ids.local + p]; }
        of_row[row] = total;
        if row0 + row < params.tokens && d0 == 0u { lse[head * params.tokens + row0 + row] = softmax.largest + log_positive(total); }
    }
    workgroupBarrier();
    let total = four_rows(ids.local);
    for (var c = 0u; c < 4u; c += 1u) {
        low[c] /= total;
        high[c] /= total;
    }
    write(QUERIES, own, d0, low, ids.local);
    write(QUERIES, own, d0 + WIDTH, high, ids.local);
}
