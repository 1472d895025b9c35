// The attention of TILE_X rows to a share, four threads a position. Every sum has one order, and products are fused with sums in one way, so that a
// row's share is the same bits in every kernel that includes this, and in attention_many.wgsl.

// Quads of a head that a thread adds values of: of all quads, every 32nd.
const QUADS: u32 = MAX_QUADS / (THREADS / 8u);
// Quads of a key that a thread loads before it multiplies the first.
const AHEAD: u32 = 8u;

var<workgroup> queries: array<vec4<f32>, TILE_X * MAX_QUADS>;
// By row and position: e^(score - largest).
var<workgroup> weights: array<f32, TILE_X * SPAN>;

// Maps floats to unsigned integers in the same order, and back, for cell_max.
fn to_ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
fn from_ordered(v: u32) -> f32 { return bitcast<f32>(select(~v, v & 0x7fffffffu, v >= 0x80000000u)); }

// Has the scaled queries of the rows in workgroup memory; a barrier must follow. `head_quad(start, quad, rotates, position)` is elements 4·quad .. of the
// head that begins at qkv[start].
fn load_queries(rows: Rows, ids: Ids) {
    for (var i = ids.local; i < TILE_X * rows.quads; i += THREADS) {
        let row = rows.first + i / rows.quads;
        var q = vec4<f32>();
        if row < rows.count {
            let start = head_of(rows, row, params.heads + 2u * params.kv_heads) * params.head_dim;
            q = head_quad(start, i % rows.quads, params.rotate != 0u, min(rows.past, params.capacity - 1u)) * params.scale;
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

// The largest `v` of the lanes of a team whose numbers differ above the lowest two bits.
fn largest_of(v: u32, ids: Ids) -> u32 {
    let lanes = team_lanes(ids);
    var most = max(v, team_exchange(v, 4u, ids));
    if lanes > 8u { most = max(most, team_exchange(most, 8u, ids)); }
    if lanes > 16u { most = max(most, team_exchange(most, 16u, ids)); }
    return most;
}

// All threads of the workgroup must call this together, with cells that are clear. `key_quad(rows, position, d)` and `value_quad(rows, position, d)` are
// quads of the key and the value of a position as the cache has them. Their loads stand outside of branches, and are converted when all are on their way.
fn attend(rows: Rows, share: u32, ids: Ids) -> Share {
    let start = share * SPAN;

    // A thread adds the products of every fourth quad of a position for all rows; four threads bring theirs together, each for every fourth row.
    let quarter = ids.local % 4u;
    let position = start + ids.local / 4u;
    var score = array<f32, TILE_X>();
    if rows.start <= position && position < rows.visible {
        for (var first = quarter; first < rows.quads; first += 4u * AHEAD) {
            var k = array<vec4<C>, AHEAD>();
            for (var u = 0u; u < AHEAD; u += 1u) { k[u] = key_quad(rows, position, min(first + 4u * u, rows.quads - 1u)); }
            for (var u = 0u; u < AHEAD; u += 1u) {
                let quad = first + 4u * u;
                if quad < rows.quads {
                    let key = vec4<f32>(k[u]);
                    for (var r = 0u; r < TILE_X; r += 1u) { score[r] = dot_quad(queries[r * rows.quads + quad], key, score[r]); }
                }
            }
        }
    }
    fold(TILE_X, 1u, &score, ids);
    fold(TILE_X / 2u, 2u, &score, ids);
    // A cell for every row.
    var seen = array<bool, TILE_X / 4u>();
    for (var r = 0u; r < TILE_X / 4u; r += 1u) {
        let row = 4u * r + quarter;
        let token = (rows.first + row) / rows.sharing;
        seen[r] = position < rows.visible && position <= rows.past + token && start_of(rows.past, token) <= position;
        let most = largest_of(to_ordered(select(LOWEST, score[r], seen[r])), ids);
        if team_lane(ids) < 4u { atomicMax(&cells[row], most); }
    }
    workgroupBarrier();
    for (var r = 0u; r < TILE_X / 4u; r += 1u) {
        let row = 4u * r + quarter;
        let weight = exp_negative(score[r] - from_ordered(atomicLoad(&cells[row])));
        weights[row * SPAN + ids.local / 4u] = select(0.0, weight, seen[r]);
    }
    workgroupBarrier();

    // A thread adds the weights, and the values, of every eighth position for all rows; eight threads bring theirs together, each for one row.
    var found: Share;
    found.largest = from_ordered(atomicLoad(&cells[row_of(ids)]));
    for (var q = 0u; q < QUADS; q += 1u) {
        let quad = ids.local / 8u + q * (THREADS / 8u);
        var total = array<f32, TILE_X>();
        var sum = array<vec4<f32>, TILE_X>();
        // The same for all threads, since they exchange.
        if q * (THREADS / 8u) < rows.quads {
            let at = min(quad, rows.quads - 1u);
            // Before the first position that is seen and beyond the last, these are taken again: their weights there are 0.
            var v = array<vec4<C>, SPAN / 8u>();
            for (var u = 0u; u < SPAN / 8u; u += 1u) {
                v[u] = value_quad(rows, clamp(start + ids.local % 8u + 8u * u, rows.start, rows.visible - 1u), at);
            }
            for (var u = 0u; u < SPAN / 8u; u += 1u) {
                let i = ids.local % 8u + 8u * u;
                let value = vec4<f32>(v[u]);
                for (var r = 0u; r < TILE_X; r += 1u) {
                    let weight = weights[r * SPAN + i];
                    total[r] += weight;
                    sum[r] = fma(vec4<f32>(weight), value, sum[r]);
                }
            }
            fold(TILE_X, 1u, &total, ids);
            fold_quads(TILE_X, 1u, &sum, ids);
            fold(TILE_X / 2u, 2u, &total, ids);
            fold_quads(TILE_X / 2u, 2u, &sum, ids);
            if TILE_X == 8u {
                fold(2u, 4u, &total, ids);
                fold_quads(2u, 4u, &sum, ids);
            } else {
                total[0] += exchanged(total[0], 4u, ids);
                sum[0] += exchanged_quad(sum[0], 4u, ids);
            }
            if q == 0u { found.total = total[0]; }
        }
        found.sum[q] = sum[0];
    }
    return found;
}
