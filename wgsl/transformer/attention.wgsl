// Causal attention of the `run` new tokens of each sequence to all cached positions: y = Σ_p e^(s_p)·values[p] / Σ_p e^(s_p) with s_p =
// `scale`·q·keys[p], by online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., 2205.14135). qkv and the caches are as in rope.wgsl.
//
// A key head serves heads / kv_heads query heads; these times the new tokens are its rows. A workgroup takes TILE_X rows of one key head and one of
// `splits` shares of the positions. It writes y [splits, tokens, heads, head_dim], normalised within the share,
// and to y_weight [splits, tokens, heads] each row's largest score and its sum of e^(s_p - largest), with which attention_combine.wgsl combines
// the shares.
struct Params { run: u32, sequence: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32, splits: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> positions: array<u32>;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<C>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read_write> y_weight: array<vec2<f32>>;

// Below every score. Finite, since some compilers assume that infinities do not occur.
const LOWEST: f32 = -1e30;

var<workgroup> queries: array<vec4<f32>, TILE_X * MAX_QUADS>;
var<workgroup> weights: array<f32, TILE_X * THREADS>;
var<workgroup> shares: array<vec4<f32>, THREADS>;

// Maps floats to unsigned integers in the same order, and back, since group_max_u32 takes those.
fn to_ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
fn from_ordered(v: u32) -> f32 { return bitcast<f32>(select(~v, v & 0x7fffffffu, v >= 0x80000000u)); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention(group: Group, ids: Ids) {
    let sharing = params.heads / params.kv_heads;
    let quads = (params.head_dim + 3u) / 4u;
    let row_length = (params.heads + 2u * params.kv_heads) * params.head_dim;
    let kv_head = group.id.y % params.kv_heads;
    let split = group.id.y / params.kv_heads;
    let sequence = params.sequence + group.id.z;
    let row0 = group.id.x * TILE_X;
    let rows = params.run * sharing;
    let past = positions[sequence];

    for (var i = ids.local; i < TILE_X * quads; i += THREADS) {
        let row = row0 + i / quads;
        let start = (group.id.z * params.run + row / sharing) * row_length + (kv_head * sharing + row % sharing) * params.head_dim;
        var q = vec4<f32>();
        for (var j = 0u; j < 4u; j += 1u) {
            let d = i % quads * 4u + j;
            if row < rows && d < params.head_dim { q[j] = qkv[start + d] * params.scale; }
        }
        queries[i] = q;
    }
    workgroupBarrier();

    // The positions that the rows may see, and this workgroup's share of them: whole tiles of THREADS positions.
    let visible = min(past + (min(row0 + TILE_X, rows) - 1u) / sharing + 1u, params.capacity);
    let share = ((visible + THREADS - 1u) / THREADS + params.splits - 1u) / params.splits * THREADS;
    let end = min(visible, (split + 1u) * share);

    // Values are added by one thread per four elements of the head and part of the positions, in as many parts as there are threads for.
    let quad = ids.local % quads;
    let part = ids.local / quads;
    let parts = THREADS / quads;
    let key_row = (sequence * params.kv_heads + kv_head) * quads;
    let value_row = (sequence * params.kv_heads + kv_head) * params.capacity;
    var largest = array<f32, TILE_X>();
    var total = array<f32, TILE_X>();
    var sum = array<vec4<f32>, TILE_X>();
    for (var r = 0u; r < TILE_X; r += 1u) { largest[r] = LOWEST; }
    for (var tile = split * share; tile < end; tile += THREADS) {
        let position = tile + ids.local;
        var score = array<f32, TILE_X>();
        if position < end {
            for (var d = 0u; d < quads; d += 1u) {
                let k = vec4<f32>(keys[(key_row + d) * params.capacity + position]);
                for (var r = 0u; r < TILE_X; r += 1u) { score[r] += dot(queries[r * quads + d], k); }
            }
        }
        for (var r = 0u; r < TILE_X; r += 1u) {
            let seen = position < end && position <= past + (row0 + r) / sharing;
            let top = max(largest[r], from_ordered(group_max_u32(to_ordered(select(LOWEST, score[r], seen)), ids)));
            let weight = select(0.0, exp_negative(score[r] - top), seen);
            let shrink = exp_negative(largest[r] - top);
            largest[r] = top;
            total[r] = total[r] * shrink + weight;
            sum[r] *= shrink;
            weights[r * THREADS + ids.local] = weight;
        }
        workgroupBarrier();
        if part < parts {
            for (var p = part; p < min(end - tile, THREADS); p += parts) {
                let v = vec4<f32>(values[(value_row + tile + p) * quads + quad]);
                for (var r = 0u; r < TILE_X; r += 1u) { sum[r] += weights[r * THREADS + p] * v; }
            }
        }
        workgroupBarrier();
    }

    for (var r = 0u; r < TILE_X; r += 1u) {
        let row = row0 + r;
        let all = group_sum_f32(total[r], ids);
        shares[ids.local] = sum[r];
        workgroupBarrier();
        if ids.local < quads && row < rows {
            var v = shares[ids.local];
            for (var p = 1u; p < parts; p += 1u) { v += shares[ids.local + p * quads]; }
            // In a share without positions, v and all are 0.
            v = v / max(all, 1e-30);
            let tokens = group.count.z * params.run;
            let output_row = (split * tokens + group.id.z * params.run + row / sharing) * params.heads + kv_head * sharing + row % sharing;
            for (var j = 0u; j < 4u; j += 1u) {
                let d = ids.local * 4u + j;
                if d < params.head_dim { y[output_row * params.head_dim + d] = v[j]; }
            }
            if ids.local == 0u { y_weight[output_row] = vec2<f32>(largest[r], all); }
        }
        workgroupBarrier();
    }
}
