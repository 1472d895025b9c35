// The attention of TILE_X rows to a share: SPAN neighbouring positions of a key head, whatever the context, the batch, and what else a workgroup does.
// A key head serves heads / kv_heads query heads; these times the new tokens of a sequence are its rows. Every sum has one order, and products are
// fused with sums in one way, so that a row's share is the same bits in every kernel that includes this. qkv and the caches are as in rope.wgsl.
struct Params {
    run: u32, sequence: u32, heads: u32, kv_heads: u32, head_dim: u32, capacity: u32, longest: u32, rotate: u32, add: u32, scale: f32,
}
var<immediate> params: Params;

// Four threads a position.
const SPAN: u32 = THREADS / 4u;
// Quads of a head that a thread adds values of: of all quads, every 32nd.
const QUADS: u32 = MAX_QUADS / (THREADS / 8u);
// Below every score. Finite, since some compilers assume that infinities do not occur.
const LOWEST: f32 = -1e30;

var<workgroup> queries: array<vec4<f32>, TILE_X * MAX_QUADS>;
// By row and position: scores, then e^(score - largest).
var<workgroup> weights: array<f32, TILE_X * SPAN>;

fn weight_quad(row: u32, i: u32) -> vec4<f32> {
    let at = row * SPAN + 4u * i;
    return vec4<f32>(weights[at], weights[at + 1u], weights[at + 2u], weights[at + 3u]);
}

// Where the rows of a workgroup are, and what they see.
struct Rows {
    sequence: u32,
    // Of the new tokens in qkv, the sequence's first.
    token: u32,
    kv_head: u32,
    first: u32,
    count: u32,
    sharing: u32,
    // Tokens that the sequence has had before.
    past: u32,
    // Positions that the last row sees.
    visible: u32,
    quads: u32,
}

fn rows_of(x: u32, kv_head: u32, z: u32) -> Rows {
    let sharing = params.heads / params.kv_heads;
    let count = params.run * sharing;
    let past = positions[params.sequence + z];
    let visible = min(past + (min((x + 1u) * TILE_X, count) - 1u) / sharing + 1u, params.longest);
    let quads = (params.head_dim + 3u) / 4u;
    return Rows(params.sequence + z, z * params.run, kv_head, x * TILE_X, count, sharing, past, visible, quads);
}

// The row of the output, and of queries in units of a head: token · heads + head.
fn head_of(rows: Rows, row: u32, heads: u32) -> u32 {
    return (rows.token + row / rows.sharing) * heads + rows.kv_head * rows.sharing + row % rows.sharing;
}

// Has the scaled queries of the rows in workgroup memory; a barrier must follow. `head_quad(start, quad, rotates, position)` is elements 4·quad .. of the
// head that begins at qkv[start].
fn load_queries(rows: Rows, ids: Ids) {
    for (var i = ids.local; i < TILE_X * rows.quads; i += THREADS) {
        let row = rows.first + i / rows.quads;
        var q = vec4<f32>();
        if row < rows.count {
            let start = head_of(rows, row, params.heads + 2u * params.kv_heads) * params.head_dim;
            q = head_quad(start, i % rows.quads, params.rotate != 0u, rows.past) * params.scale;
        }
        queries[i] = q;
    }
}

// Of `n` numbers of rows, each of two lanes that differ in the bit `mask` keeps every second, and adds what the other has of it.
fn fold(n: u32, mask: u32, v: ptr<function, array<f32, TILE_X>>, ids: Ids) {
    let odd = (ids.local & mask) != 0u;
    for (var r = 0u; r < n / 2u; r += 1u) {
        let kept = select((*v)[2u * r], (*v)[2u * r + 1u], odd);
        let given = select((*v)[2u * r + 1u], (*v)[2u * r], odd);
        (*v)[r] = kept + exchanged(given, mask, ids);
    }
}

fn exchanged(v: f32, mask: u32, ids: Ids) -> f32 { return bitcast<f32>(team_exchange(bitcast<u32>(v), mask, ids)); }

fn exchanged_quad(v: vec4<f32>, mask: u32, ids: Ids) -> vec4<f32> {
    return vec4<f32>(exchanged(v.x, mask, ids), exchanged(v.y, mask, ids), exchanged(v.z, mask, ids), exchanged(v.w, mask, ids));
}

fn fold_quads(n: u32, mask: u32, v: ptr<function, array<vec4<f32>, TILE_X>>, ids: Ids) {
    let odd = (ids.local & mask) != 0u;
    for (var r = 0u; r < n / 2u; r += 1u) {
        let kept = select((*v)[2u * r], (*v)[2u * r + 1u], odd);
        let given = select((*v)[2u * r + 1u], (*v)[2u * r], odd);
        (*v)[r] = kept + exchanged_quad(given, mask, ids);
    }
}

// What a thread knows of a share: of row `local % 8` (of `local % 4` where a tile has four), the largest score, the sum of e^(score - largest), and of
// quads local / 8, and 32 further, the values weighted by these.
struct Share { largest: f32, total: f32, sum: array<vec4<f32>, QUADS> }

// The row of a thread in a Share.
fn row_of(ids: Ids) -> u32 { return ids.local % TILE_X; }

fn dot_quad(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum)))); }

// All threads of the workgroup must call this together.
fn attend(rows: Rows, share: u32, ids: Ids) -> Share {
    let start = share * SPAN;
    let cache_row = rows.sequence * params.kv_heads + rows.kv_head;

    // A thread adds a quarter of the products of a position for all rows; four threads bring theirs together, each for every fourth row.
    let quarter = ids.local % 4u;
    let position = start + ids.local / 4u;
    let part = (rows.quads + 3u) / 4u;
    var score = array<f32, TILE_X>();
    if position < rows.visible {
        for (var d = quarter * part; d < min((quarter + 1u) * part, rows.quads); d += 1u) {
            let k = vec4<f32>(keys[(cache_row * rows.quads + d) * params.capacity + position]);
            for (var r = 0u; r < TILE_X; r += 1u) { score[r] = dot_quad(queries[r * rows.quads + d], k, score[r]); }
        }
    }
    fold(TILE_X, 1u, &score, ids);
    fold(TILE_X / 2u, 2u, &score, ids);
    for (var r = 0u; r < TILE_X / 4u; r += 1u) {
        let row = 4u * r + quarter;
        let seen = position < rows.visible && position <= rows.past + (rows.first + row) / rows.sharing;
        score[r] = select(LOWEST, score[r], seen);
        weights[row * SPAN + ids.local / 4u] = score[r];
    }
    workgroupBarrier();

    var largest = array<f32, TILE_X / 4u>();
    for (var r = 0u; r < TILE_X / 4u; r += 1u) {
        var most = weight_quad(4u * r + quarter, 0u);
        for (var i = 1u; i < SPAN / 4u; i += 1u) { most = max(most, weight_quad(4u * r + quarter, i)); }
        largest[r] = max(max(most.x, most.y), max(most.z, most.w));
        score[r] = select(exp_negative(score[r] - largest[r]), 0.0, score[r] == LOWEST);
    }
    workgroupBarrier();
    for (var r = 0u; r < TILE_X / 4u; r += 1u) { weights[(4u * r + quarter) * SPAN + ids.local / 4u] = score[r]; }
    workgroupBarrier();

    var found: Share;
    found.largest = largest[row_of(ids) / 4u];
    var total = weight_quad(row_of(ids), 0u);
    for (var i = 1u; i < SPAN / 4u; i += 1u) { total += weight_quad(row_of(ids), i); }
    found.total = (total.x + total.y) + (total.z + total.w);

    // A thread adds the values of every eighth position for all rows; eight threads bring theirs together, each for one row.
    for (var q = 0u; q < QUADS; q += 1u) {
        let quad = ids.local / 8u + q * (THREADS / 8u);
        var sum = array<vec4<f32>, TILE_X>();
        // The same for all threads, since they exchange.
        if q * (THREADS / 8u) < rows.quads {
            for (var i = ids.local % 8u; i < SPAN; i += 8u) {
                if start + i < rows.visible && quad < rows.quads {
                    let v = vec4<f32>(values[(cache_row * params.capacity + start + i) * rows.quads + quad]);
                    for (var r = 0u; r < TILE_X; r += 1u) { sum[r] = fma(vec4<f32>(weights[r * SPAN + i]), v, sum[r]); }
                }
            }
            fold_quads(TILE_X, 1u, &sum, ids);
            fold_quads(TILE_X / 2u, 2u, &sum, ids);
            if TILE_X == 8u { fold_quads(2u, 4u, &sum, ids); } else { sum[0] += exchanged_quad(sum[0], 4u, ids); }
        }
        found.sum[q] = sum[0];
    }
    // Before the weights of another share.
    workgroupBarrier();
    return found;
}
