// The gated delta rule, token by token: S = g·S + k (β (v - (g·S)ᵀ k))ᵀ and y = Sᵀ q · scale, where q and k are divided by their lengths, β = σ(beta)
// and g = e^(decay · softplus(alpha + dt_bias)). A row of mixed has `key_heads` queries, as many keys, and `value_heads` values; alpha and beta are
// [tokens, value_heads], state is [sequences, value_heads, key_dim, value_dim], and y [tokens, value_heads, value_dim]. Tokens are runs of `run`: runs
// says of each which of the `sequences` it continues, and how many tokens that has so far; without some, its state is taken for zeros. One workgroup
// per run, value head and COLUMNS columns of its state, which it holds in registers: PARTS threads share a column, and take its numbers in turns.
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

fn key_head(head: u32) -> u32 {
    if params.tiled != 0u { return head % params.key_heads; }
    return head / (params.value_heads / params.key_heads);
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
    let keys = params.key_heads * params.key_dim;
    let run = runs[place];
    let sequence = min(run.x, params.sequences - 1u);
    let own = (sequence * params.value_heads + head) * params.key_dim * params.value_dim + column;
    // Indices are constants, since compilers may put an array into memory instead of registers.
    var held = array<f32, HELD>();
    for (var i = 0u; i < HELD; i += 1u) {
        let k = i * PARTS + part;
        if exists && run.y > 0u && k < params.key_dim { held[i] = state[own + k * params.value_dim]; }
    }
    for (var t = 0u; t < params.run; t += 1u) {
        let token = place * params.run + t;
        let row = token * (2u * keys + params.value_heads * params.value_dim);
        let query = row + key_head(head) * params.key_dim;
        let key = query + keys;
        let rate = token * params.value_heads + head;
        // softplus.wgsl has the function.
        let kept = exp_negative(decay[head] * forward(alpha[rate] + dt_bias[head]));
        var square = vec2<f32>();
        var product = 0.0;
        for (var i = 0u; i < HELD; i += 1u) {
            let k = i * PARTS + part;
            if k < params.key_dim {
                let pair = vec2<f32>(mixed[query + k], mixed[key + k]);
                square = fma(pair, pair, square);
                held[i] *= kept;
                product = fma(held[i], pair.y, product);
            }
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
        if exists {
            let value = mixed[row + 2u * keys + head * params.value_dim + column];
            change = (value - product * of_key) * sigmoid(beta[rate]) * of_key;
        }
        var read = 0.0;
        for (var i = 0u; i < HELD; i += 1u) {
            let k = i * PARTS + part;
            if k < params.key_dim {
                held[i] = fma(mixed[key + k], change, held[i]);
                read = fma(held[i], mixed[query + k], read);
            }
        }
        reads[ids.local] = read;
        workgroupBarrier();
        if part == 0u && exists {
            read = 0.0;
            for (var p = 0u; p < PARTS; p += 1u) { read += reads[p * COLUMNS + lane]; }
            y[(token * params.value_heads + head) * params.value_dim + column] = read * of_query;
        }
    }
    for (var i = 0u; i < HELD; i += 1u) {
        let k = i * PARTS + part;
        if exists && k < params.key_dim { state[own + k * params.value_dim] = held[i]; }
    }
}
