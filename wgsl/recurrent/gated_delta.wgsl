// The gated delta rule, token by token: S = g·S + k (β (v - (g·S)ᵀ k))ᵀ and y = Sᵀ q · scale, where q and k are divided by their lengths, β = σ(beta)
// and g = e^(decay · softplus(alpha + dt_bias)). A row of mixed has `key_heads` queries, as many keys, and `value_heads` values; alpha and beta are
// [tokens, value_heads], state is [sequences, value_heads, key_dim, value_dim], and y [tokens, value_heads, value_dim]. Tokens are runs of `run`: runs
// says of each which of the `sequences` it continues, and how many tokens that has so far; without some, its state is taken for zeros. One workgroup
// per run, value head and COLUMNS columns of its state, which it holds in registers: PARTS threads share a column, and take its numbers in turns. A token's
// query, key and value are loaded while the token before is computed, and the rates of THREADS tokens at once.
struct Params {
    groups: u32, run: u32, sequences: u32, key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32, tiled: u32, scale: f32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> mixed: array<f32>;
@group(0) @binding(2) var<storage, read> alpha: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(5) var<storage, read> decay: array<f32>;
@group(0) @binding(6) var<storage, read_write> state: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

// Added to the sum of squares of a query or a key.
const EPS = 1e-6;

// Each thread's share of what the state has for the key, and of what is read.
var<workgroup> products: array<f32, THREADS>;
var<workgroup> reads: array<f32, THREADS>;
// Shares of the squares of the query, and of the key, which are the same for all columns.
var<workgroup> squares: array<vec2<f32>, PARTS>;
// How much of the state a token keeps, and how much of it is written.
var<workgroup> rates: array<vec2<f32>, THREADS>;
// Queries and keys of two tokens in turn: of each part, pairs of its numbers (query, key, query, key), and a place that separates it from the next.
const PAIRS: u32 = HELD / 2u;
const PITCH: u32 = PAIRS + 1u;
var<workgroup> staged: array<vec4<f32>, 2u * PARTS * PITCH>;

fn key_head(head: u32) -> u32 {
    if params.tiled != 0u { return head % params.key_heads; }
    return head / (params.value_heads / params.key_heads);
}

// Number k of a query or key that begins at `first`; beyond it zeros.
fn number(first: u32, k: u32) -> f32 { return select(0.0, mixed[first + min(k, params.key_dim - 1u)], k < params.key_dim); }

// What thread number `local` stages of a token: numbers 2·h and 2·h + 1 of a part.
fn staged_pair(query: u32, local: u32) -> vec4<f32> {
    let key = query + params.key_heads * params.key_dim;
    let k = 2u * (local / PARTS) * PARTS + local % PARTS;
    return vec4<f32>(number(query, k), number(key, k), number(query, k + PARTS), number(key, k + PARTS));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gated_delta(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let slabs = (params.value_dim + COLUMNS - 1u) / COLUMNS;
    let head = index / slabs % params.value_heads;
    let place = index / slabs / params.value_heads;
    let lane = ids.local % COLUMNS;
    let part = ids.local / COLUMNS;
    let column = index % slabs * COLUMNS + lane;
    let exists = column < params.value_dim;
    let run = runs[place];
    let sequence = min(run.x, params.sequences - 1u);
    let own = (sequence * params.value_heads + head) * params.key_dim * params.value_dim + column;
    // Indices are constants, since compilers may put an array into memory instead of registers. Numbers beyond the key stay zeros, like those of a query
    // and key: a condition for each would take registers in all of the loop.
    var held = array<f32, HELD>();
    if exists && run.y > 0u {
        for (var i = 0u; i < HELD; i += 1u) {
            let k = i * PARTS + part;
            if k < params.key_dim { held[i] = state[own + k * params.value_dim]; }
        }
    }
    let stride = 2u * params.key_heads * params.key_dim + params.value_heads * params.value_dim;
    let first = place * params.run;
    let query = key_head(head) * params.key_dim;
    let of_value = 2u * params.key_heads * params.key_dim + head * params.value_dim + min(column, params.value_dim - 1u);
    let stages = ids.local < PARTS * PAIRS;
    let stage = ids.local % PARTS * PITCH + ids.local / PARTS;
    var next = vec4<f32>();
    if stages { staged[stage] = staged_pair(first * stride + query, ids.local); }
    var next_value = mixed[first * stride + of_value];
    for (var t = 0u; t < params.run; t += 1u) {
        if t % THREADS == 0u {
            if t + ids.local < params.run {
                let rate = (first + t + ids.local) * params.value_heads + head;
                // softplus.wgsl has the function.
                let kept = exp_negative(decay[head] * forward(alpha[rate] + dt_bias[head]));
                rates[ids.local] = vec2<f32>(kept, sigmoid(beta[rate]));
            }
            workgroupBarrier();
        }
        let token = first + t;
        let value = next_value;
        let following = min(token + 1u, first + params.run - 1u) * stride;
        if stages { next = staged_pair(following + query, ids.local); }
        next_value = mixed[following + of_value];
        let rate = rates[t % THREADS];
        let line = t % 2u * PARTS * PITCH + part * PITCH;
        var square = vec2<f32>();
        var product = 0.0;
        for (var i = 0u; i < PAIRS; i += 1u) {
            let pairs = staged[line + i];
            square = fma(pairs.xy, pairs.xy, square);
            held[2u * i] *= rate.x;
            product = fma(held[2u * i], pairs.y, product);
            square = fma(pairs.zw, pairs.zw, square);
            held[2u * i + 1u] *= rate.x;
            product = fma(held[2u * i + 1u], pairs.w, product);
        }
        products[ids.local] = product;
        if lane == 0u { squares[part] = square; }
        workgroupBarrier();
        product = 0.0;
        square = vec2<f32>();
        for (var p = 0u; p < PARTS; p += 1u) {
            product += products[p * COLUMNS + lane];
            square += squares[p];
        }
        let of_query = params.scale / sqrt(square.x + EPS);
        let of_key = 1.0 / sqrt(square.y + EPS);
        var change = 0.0;
        if exists { change = (value - product * of_key) * rate.y * of_key; }
        var read = 0.0;
        for (var i = 0u; i < PAIRS; i += 1u) {
            let pairs = staged[line + i];
            held[2u * i] = fma(pairs.y, change, held[2u * i]);
            read = fma(held[2u * i], pairs.x, read);
            held[2u * i + 1u] = fma(pairs.w, change, held[2u * i + 1u]);
            read = fma(held[2u * i + 1u], pairs.z, read);
        }
        reads[ids.local] = read;
        if stages { staged[(t + 1u) % 2u * PARTS * PITCH + stage] = next; }
        workgroupBarrier();
        if part == 0u && exists {
            read = 0.0;
            for (var p = 0u; p < PARTS; p += 1u) { read += reads[p * COLUMNS + lane]; }
            y[(token * params.value_heads + head) * params.value_dim + column] = read * of_query;
        }
    }
    if exists {
        for (var i = 0u; i < HELD; i += 1u) {
            let k = i * PARTS + part;
            if k < params.key_dim { state[own + k * params.value_dim] = held[i]; }
        }
    }
}
