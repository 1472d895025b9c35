// Causal attention of many new tokens, after rope.wgsl: y as in attention_few.wgsl, and the same bits. A workgroup goes through all shares that its TILE_X
// rows see. 16 threads (across) by TILE_X / 4 (down): a thread makes scores and outputs of four rows, 4·down to 4·down + 3, of a share's positions across,
// across + 16, .. and of every 16th quad of a head. A vector of `staged` that is not a quad of a head has a number of each of four rows.
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> qkv: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<C>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

const DOWN: u32 = TILE_X / 4u;
// Quads of a head whose products are added between two barriers.
const STEP: u32 = 8u;
// A thread makes so many quads of a row, one after another.
const PASSES: u32 = MAX_QUADS / 16u;
// Positions whose values are added between two barriers: four of the eight sums over a share.
const HALF: u32 = SPAN / 2u;

// What is in `staged`, by turns: keys [STEP, SPAN] beside queries [4·STEP, DOWN]; weights [SPAN, DOWN], e^(score - largest), beside sums of them [8, DOWN],
// and then beside values [HALF, 16].
const QUERIES: u32 = STEP * SPAN;
const LARGEST: u32 = QUERIES + 4u * STEP * DOWN;
const BESIDE: u32 = SPAN * DOWN;
var<workgroup> staged: array<vec4<f32>, BESIDE + HALF * 16u>;

// Of four positions, numbers of four rows each; or of four rows, a quad each.
struct Tile { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn added(s: Tile, t: Tile) -> Tile { return Tile(s.a + t.a, s.b + t.b, s.c + t.c, s.d + t.d); }

// Where a thread is in its workgroup. Neighbours in a subgroup are 8 across and 4 down, so that they read few vectors of each kind at a time.
struct Place { across: u32, down: u32 }

fn place_of(local: u32) -> Place { return Place(local % 8u + local / 32u % 2u * 8u, local / 8u % 4u + local / 64u * 4u); }

fn row_of(rows: Rows, row: u32) -> u32 { return min(rows.first + row, rows.count - 1u); }

// Where the queries of a row begin, in pairs. Rows that do not exist are read as the last one, and not written.
fn queries_of(rows: Rows, row: u32) -> u32 { return head_of(rows, row_of(rows, row), params.heads + 2u * params.kv_heads) * (params.head_dim / 2u); }

// The positions that a row sees end here.
fn end_of(rows: Rows, row: u32) -> u32 { return min(rows.past + row_of(rows, row) / rows.sharing + 1u, rows.visible); }

fn exp_negatives(x: vec4<f32>) -> vec4<f32> { return vec4<f32>(exp_negative(x.x), exp_negative(x.y), exp_negative(x.z), exp_negative(x.w)); }

// Numbers of four rows that end at these positions, where they see one.
fn seen(position: u32, ends: vec4<u32>, v: vec4<f32>, otherwise: f32) -> vec4<f32> {
    return vec4<f32>(
        select(otherwise, v.x, position < ends.x),
        select(otherwise, v.y, position < ends.y),
        select(otherwise, v.z, position < ends.z),
        select(otherwise, v.w, position < ends.w),
    );
}

// Stages quads of queries and of keys from `first` on. Beyond the last quad, queries are 0; beyond the last position that is seen, it is taken again.
fn stage_products(rows: Rows, starts: vec4<u32>, start: u32, first: u32, local: u32) {
    let pair = 2u * first + local / DOWN;
    let at = starts + min(pair, params.head_dim / 2u - 1u);
    let a = qkv[at.x];
    let b = qkv[at.y];
    let c = qkv[at.z];
    let d = qkv[at.w];
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    var k = array<vec4<C>, STEP * SPAN / THREADS>();
    for (var n = 0u; n < STEP * SPAN / THREADS; n += 1u) {
        let i = local + n * THREADS;
        let quad = min(first + i / SPAN, rows.quads - 1u);
        k[n] = keys[(row * rows.quads + quad) * params.capacity + min(start + i % SPAN, rows.visible - 1u)];
    }
    workgroupBarrier();
    let scale = select(0.0, params.scale, pair < params.head_dim / 2u);
    let q = QUERIES + local / DOWN * 2u * DOWN + local % DOWN;
    staged[q] = vec4<f32>(a.x, b.x, c.x, d.x) * scale;
    staged[q + DOWN] = vec4<f32>(a.y, b.y, c.y, d.y) * scale;
    for (var n = 0u; n < STEP * SPAN / THREADS; n += 1u) { staged[local + n * THREADS] = vec4<f32>(k[n]); }
    workgroupBarrier();
}

// Four positions' scores of four rows, to which the products of a quad are added.
fn add_products(quad: u32, place: Place, sums: Tile) -> Tile {
    let q = QUERIES + 4u * quad * DOWN + place.down;
    let q0 = staged[q];
    let q1 = staged[q + DOWN];
    let q2 = staged[q + 2u * DOWN];
    let q3 = staged[q + 3u * DOWN];
    let k = quad * SPAN + place.across;
    return Tile(
        dot_rows(q0, q1, q2, q3, staged[k], sums.a),
        dot_rows(q0, q1, q2, q3, staged[k + 16u], sums.b),
        dot_rows(q0, q1, q2, q3, staged[k + 32u], sums.c),
        dot_rows(q0, q1, q2, q3, staged[k + 48u], sums.d),
    );
}

// In the order of dot_quad in attention_share.wgsl.
fn dot_rows(q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>, k: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return fma(q3, vec4<f32>(k.w), fma(q2, vec4<f32>(k.z), fma(q1, vec4<f32>(k.y), fma(q0, vec4<f32>(k.x), sum))));
}

// Stages quads of values from quad 16·pass on, of the positions 4·half to 4·half + 3 of every eight.
fn stage_values(rows: Rows, start: u32, pass_: u32, half_: u32, local: u32) {
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    var v = array<vec4<C>, HALF * 16u / THREADS>();
    for (var n = 0u; n < HALF * 16u / THREADS; n += 1u) {
        let i = local + n * THREADS;
        let position = start + i / 64u * 8u + half_ * 4u + i / 16u % 4u;
        let quad = min(pass_ * 16u + i % 16u, rows.quads - 1u);
        v[n] = values[(row * params.capacity + min(position, rows.visible - 1u)) * rows.quads + quad];
    }
    workgroupBarrier();
    for (var n = 0u; n < HALF * 16u / THREADS; n += 1u) { staged[BESIDE + local + n * THREADS] = vec4<f32>(v[n]); }
    workgroupBarrier();
}

// One of the eight sums of weighted values over a share: for four rows, a quad each.
fn weighted(half_: u32, chain: u32, place: Place) -> Tile {
    var sums = Tile();
    for (var i = 0u; i < SPAN / 8u; i += 1u) {
        let weight = staged[(8u * i + 4u * half_ + chain) * DOWN + place.down];
        let value = staged[BESIDE + (4u * i + chain) * 16u + place.across];
        sums.a = fma(vec4<f32>(weight.x), value, sums.a);
        sums.b = fma(vec4<f32>(weight.y), value, sums.b);
        sums.c = fma(vec4<f32>(weight.z), value, sums.c);
        sums.d = fma(vec4<f32>(weight.w), value, sums.d);
    }
    return sums;
}

fn write_row(rows: Rows, row: u32, quad: u32, total: f32, sum: vec4<f32>) {
    if rows.first + row < rows.count { put(head_of(rows, rows.first + row, params.heads) * params.head_dim, quad, quotient(Merged(0.0, total, sum))); }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_many(group: Group, ids: Ids) {
    // The last rows of a sequence see most: they begin first.
    let rows = rows_of(group.count.x - 1u - group.id.x, group.id.y, group.id.z);
    let place = place_of(ids.local);
    let row = 4u * place.down;
    let ends = vec4<u32>(end_of(rows, row), end_of(rows, row + 1u), end_of(rows, row + 2u), end_of(rows, row + 3u));
    let loaded = ids.local % DOWN * 4u;
    let starts = vec4<u32>(queries_of(rows, loaded), queries_of(rows, loaded + 1u), queries_of(rows, loaded + 2u), queries_of(rows, loaded + 3u));

    var largest = vec4<f32>(LOWEST);
    var total = vec4<f32>();
    var so_far = array<Tile, PASSES>();
    for (var start = 0u; start < rows.visible; start += SPAN) {
        // Four sums for every score: of quads 0, 4, .., of quads 1, 5, .., and so on.
        var sums0 = Tile();
        var sums1 = Tile();
        var sums2 = Tile();
        var sums3 = Tile();
        for (var first = 0u; first < rows.quads; first += STEP) {
            stage_products(rows, starts, start, first, ids.local);
            for (var quad = 0u; quad < min(STEP, rows.quads - first); quad += 4u) {
                sums0 = add_products(quad, place, sums0);
                sums1 = add_products(quad + 1u, place, sums1);
                sums2 = add_products(quad + 2u, place, sums2);
                sums3 = add_products(quad + 3u, place, sums3);
            }
        }
        let position = start + place.across;
        let scores = added(added(sums0, sums1), added(sums2, sums3));
        let score0 = seen(position, ends, scores.a, LOWEST);
        let score1 = seen(position + 16u, ends, scores.b, LOWEST);
        let score2 = seen(position + 32u, ends, scores.c, LOWEST);
        let score3 = seen(position + 48u, ends, scores.d, LOWEST);
        staged[LARGEST + place.across * DOWN + place.down] = max(max(score0, score1), max(score2, score3));
        workgroupBarrier();
        var most = staged[LARGEST + place.down];
        for (var i = 1u; i < 16u; i += 1u) { most = max(most, staged[LARGEST + i * DOWN + place.down]); }
        let weights = place.across * DOWN + place.down;
        staged[weights] = seen(position, ends, exp_negatives(score0 - most), 0.0);
        staged[weights + 16u * DOWN] = seen(position + 16u, ends, exp_negatives(score1 - most), 0.0);
        staged[weights + 32u * DOWN] = seen(position + 32u, ends, exp_negatives(score2 - most), 0.0);
        staged[weights + 48u * DOWN] = seen(position + 48u, ends, exp_negatives(score3 - most), 0.0);
        workgroupBarrier();

        // Every eighth weight of four rows.
        if ids.local < 8u * DOWN {
            var sum = vec4<f32>();
            for (var i = 0u; i < SPAN / 8u; i += 1u) { sum += staged[8u * i * DOWN + ids.local]; }
            staged[BESIDE + ids.local] = sum;
        }
        workgroupBarrier();
        let t = BESIDE + place.down;
        let share_total = ((staged[t] + staged[t + DOWN]) + (staged[t + 2u * DOWN] + staged[t + 3u * DOWN]))
            + ((staged[t + 4u * DOWN] + staged[t + 5u * DOWN]) + (staged[t + 6u * DOWN] + staged[t + 7u * DOWN]));

        // As `merged` does, for four rows.
        let top = max(largest, most);
        let shrink = exp_negatives(largest - top);
        let grow = exp_negatives(most - top);
        largest = top;
        total = fma(share_total, grow, total * shrink);
        for (var p = 0u; p < PASSES; p += 1u) {
            if p * 16u < rows.quads {
                var sum = Tile();
                for (var h = 0u; h < 2u; h += 1u) {
                    stage_values(rows, start, p, h, ids.local);
                    let front = added(weighted(h, 0u, place), weighted(h, 1u, place));
                    let part = added(front, added(weighted(h, 2u, place), weighted(h, 3u, place)));
                    if h == 0u { sum = part; } else { sum = added(sum, part); }
                }
                so_far[p].a = fma(sum.a, vec4<f32>(grow.x), so_far[p].a * shrink.x);
                so_far[p].b = fma(sum.b, vec4<f32>(grow.y), so_far[p].b * shrink.y);
                so_far[p].c = fma(sum.c, vec4<f32>(grow.z), so_far[p].c * shrink.z);
                so_far[p].d = fma(sum.d, vec4<f32>(grow.w), so_far[p].d * shrink.w);
            }
        }
    }
    for (var p = 0u; p < PASSES; p += 1u) {
        let quad = p * 16u + place.across;
        write_row(rows, row, quad, total.x, so_far[p].a);
        write_row(rows, row + 1u, quad, total.y, so_far[p].b);
        write_row(rows, row + 2u, quad, total.z, so_far[p].c);
        write_row(rows, row + 3u, quad, total.w, so_far[p].d);
    }
}
