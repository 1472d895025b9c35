// Causal attention of many new tokens, after rope.wgsl: y as in attention_few.wgsl, and the same bits. A workgroup goes through all shares that its
// TILE_X rows see, and makes up to COLUMNS columns of their output. Its threads are 16 across by TILE_X / 4 down. A thread has four rows, 4·down to
// 4·down + 3: of scores those of the positions across, across + 16, .. of a share, and of the output every 16th quad.
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> qkv: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<C>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

const DOWN: u32 = TILE_X / 4u;
// Quads of a head whose products are added between two barriers: two of each of the four sums of a score.
const STEP: u32 = 8u;
// Every eighth position of a share is in one sum of values. Those of four sums are added between two barriers.
const HALF: u32 = SPAN / 2u;
// Quads of a row that a thread makes, one after another.
const PASSES: u32 = COLUMNS / 64u;

// What workgroup memory has by turns: keys [STEP, SPAN], queries [4·STEP, DOWN] and the largest scores [16, DOWN]; weights [SPAN, DOWN], e^(score -
// largest), and sums of them [8, DOWN]; weights and values [HALF, 16]. Keys and values are quads of a position, all else is numbers of four rows.
const QUERIES: u32 = STEP * SPAN;
const LARGEST: u32 = QUERIES + 4u * STEP * DOWN;
const BESIDE: u32 = SPAN * DOWN;
var<workgroup> staged: array<vec4<f32>, BESIDE + HALF * 16u>;

// Where the numbers of four rows are in a column of such. Neighboring columns begin with different ones, so that writing a row meets all banks.
fn slot(column: u32, down: u32) -> u32 { return column * DOWN + (down ^ (column % DOWN)); }

// Where a thread is in its workgroup. Neighbors are 8 across and 4 down, in pairs each way: NVIDIA's GPUs read vectors of workgroup memory in half the
// time where lanes, and those beside them or two further, want the same.
struct Place { across: u32, down: u32 }

fn place_of(local: u32) -> Place {
    let across = (local & 1u) | ((local >> 1u) & 6u) | ((local >> 2u) & 8u);
    return Place(across, ((local >> 1u) & 1u) | ((local >> 3u) & 2u) | ((local >> 6u) << 2u));
}

// Where the queries of a row begin, in pairs.
fn queries_of(rows: Rows, row: u32) -> u32 { return head_of(rows, row_of(rows, row), params.heads + 2u * params.kv_heads) * (params.head_dim / 2u); }

// Stages quads of queries and keys from `first` on. Beyond the last quad, queries are 0; before the first position that is seen and beyond the last,
// these are taken again. All loads are on their way before the barrier.
fn stage_products(rows: Rows, starts: vec4<u32>, start: u32, first: u32, local: u32) {
    let column = local % 16u;
    let pair = 2u * first + column;
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
        k[n] = keys[(row * rows.quads + quad) * params.capacity + clamp(start + i % SPAN, rows.start, rows.visible - 1u)];
    }
    workgroupBarrier();
    let scale = select(0.0, params.scale, pair < params.head_dim / 2u);
    staged[QUERIES + slot(2u * column, local / 16u)] = vec4<f32>(a.x, b.x, c.x, d.x) * scale;
    staged[QUERIES + slot(2u * column + 1u, local / 16u)] = vec4<f32>(a.y, b.y, c.y, d.y) * scale;
    for (var n = 0u; n < STEP * SPAN / THREADS; n += 1u) { staged[local + n * THREADS] = vec4<f32>(k[n]); }
    workgroupBarrier();
}

// In the order of dot_quad in attention_share.wgsl.
fn dot_rows(q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>, k: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return fma(q3, vec4<f32>(k.w), fma(q2, vec4<f32>(k.z), fma(q1, vec4<f32>(k.y), fma(q0, vec4<f32>(k.x), sum))));
}

// Adds the products of a quad that is staged.
fn add_products(quad: u32, place: Place, sums: Tile) -> Tile {
    let q0 = staged[QUERIES + slot(4u * quad, place.down)];
    let q1 = staged[QUERIES + slot(4u * quad + 1u, place.down)];
    let q2 = staged[QUERIES + slot(4u * quad + 2u, place.down)];
    let q3 = staged[QUERIES + slot(4u * quad + 3u, place.down)];
    let k = quad * SPAN + place.across;
    return Tile(
        dot_rows(q0, q1, q2, q3, staged[k], sums.a),
        dot_rows(q0, q1, q2, q3, staged[k + 16u], sums.b),
        dot_rows(q0, q1, q2, q3, staged[k + 32u], sums.c),
        dot_rows(q0, q1, q2, q3, staged[k + 48u], sums.d),
    );
}

alias Values = array<vec4<C>, HALF * 16u / THREADS>;

// A thread's part of 16 quads of values from `first` on, of the positions 4·half to 4·half + 3 of every eight.
fn load_values(rows: Rows, start: u32, first: u32, second_half: u32, local: u32) -> Values {
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    var v = Values();
    for (var n = 0u; n < HALF * 16u / THREADS; n += 1u) {
        let i = local + n * THREADS;
        let position = start + i / 64u * 8u + second_half * 4u + i / 16u % 4u;
        let quad = min(first + i % 16u, rows.quads - 1u);
        v[n] = values[(row * params.capacity + clamp(position, rows.start, rows.visible - 1u)) * rows.quads + quad];
    }
    return v;
}

fn stage_values(loaded: Values, local: u32) {
    var v = loaded;
    workgroupBarrier();
    for (var n = 0u; n < HALF * 16u / THREADS; n += 1u) { staged[BESIDE + local + n * THREADS] = vec4<f32>(v[n]); }
    workgroupBarrier();
}

// One of the eight sums of weighted values: of every eighth position of the share.
fn weighted(second_half: u32, chain: u32, place: Place) -> Tile {
    var sums = Tile();
    for (var i = 0u; i < SPAN / 8u; i += 1u) {
        let weight = staged[slot(8u * i + 4u * second_half + chain, place.down)];
        let value = staged[BESIDE + (4u * i + chain) * 16u + place.across];
        sums.a = fma(vec4<f32>(weight.x), value, sums.a);
        sums.b = fma(vec4<f32>(weight.y), value, sums.b);
        sums.c = fma(vec4<f32>(weight.z), value, sums.c);
        sums.d = fma(vec4<f32>(weight.w), value, sums.d);
    }
    return sums;
}

fn attend_all(group: Group, ids: Ids) {
    // Of wider heads, several workgroups compute the scores, each for its columns.
    let strips = (params.head_dim + COLUMNS - 1u) / COLUMNS;
    let taken = longest_first(group);
    let strip = taken.y % strips * (COLUMNS / 4u);
    let rows = rows_of(taken.x, taken.y / strips, group.id.z);
    let place = place_of(ids.local);
    let row = 4u * place.down;
    let asked = ids.local / 16u * 4u;
    let starts = vec4<u32>(queries_of(rows, asked), queries_of(rows, asked + 1u), queries_of(rows, asked + 2u), queries_of(rows, asked + 3u));
    let all_see = end_of(rows, 0u);
    let all_begin = begin_of(rows, TILE_X - 1u);

    var largest = vec4<f32>(LOWEST);
    var total = vec4<f32>();
    var so_far = array<Tile, PASSES>();
    for (var start = rows.start / SPAN * SPAN; start < rows.visible; start += SPAN) {
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
        var loaded = load_values(rows, start, strip, 0u, ids.local);
        var scores = added(added(sums0, sums1), added(sums2, sums3));
        if start + SPAN > all_see || start < all_begin {
            let position = start + place.across;
            let ends = vec4<u32>(end_of(rows, row), end_of(rows, row + 1u), end_of(rows, row + 2u), end_of(rows, row + 3u));
            let begins =
                vec4<u32>(begin_of(rows, row), begin_of(rows, row + 1u), begin_of(rows, row + 2u), begin_of(rows, row + 3u));
            scores.a = seen(position, begins, ends, scores.a);
            scores.b = seen(position + 16u, begins, ends, scores.b);
            scores.c = seen(position + 32u, begins, ends, scores.c);
            scores.d = seen(position + 48u, begins, ends, scores.d);
        }
        staged[LARGEST + slot(place.across, place.down)] = max(max(scores.a, scores.b), max(scores.c, scores.d));
        workgroupBarrier();
        var most = staged[LARGEST + slot(0u, place.down)];
        for (var i = 1u; i < 16u; i += 1u) { most = max(most, staged[LARGEST + slot(i, place.down)]); }
        staged[slot(place.across, place.down)] = weights_of(scores.a, most);
        staged[slot(place.across + 16u, place.down)] = weights_of(scores.b, most);
        staged[slot(place.across + 32u, place.down)] = weights_of(scores.c, most);
        staged[slot(place.across + 48u, place.down)] = weights_of(scores.d, most);
        workgroupBarrier();

        // One of the eight sums of weights.
        if ids.local < 8u * DOWN {
            var sum = vec4<f32>();
            for (var i = 0u; i < SPAN / 8u; i += 1u) { sum += staged[8u * i * DOWN + ids.local]; }
            staged[BESIDE + ids.local] = sum;
        }
        workgroupBarrier();
        let early = (staged[BESIDE + slot(0u, place.down)] + staged[BESIDE + slot(1u, place.down)])
            + (staged[BESIDE + slot(2u, place.down)] + staged[BESIDE + slot(3u, place.down)]);
        let late = (staged[BESIDE + slot(4u, place.down)] + staged[BESIDE + slot(5u, place.down)])
            + (staged[BESIDE + slot(6u, place.down)] + staged[BESIDE + slot(7u, place.down)]);

        // As `merged`.
        let top = max(largest, most);
        let shrink = exp_negatives(largest - top);
        let grow = exp_negatives(most - top);
        largest = top;
        total = fma(early + late, grow, total * shrink);
        for (var p = 0u; p < PASSES; p += 1u) {
            let first = strip + p * 16u;
            if first < rows.quads {
                var sum = Tile();
                for (var h = 0u; h < 2u; h += 1u) {
                    stage_values(loaded, ids.local);
                    // The next ones are on their way meanwhile. After the last, nobody needs them.
                    loaded = load_values(rows, start, first + h * 16u, 1u - h, ids.local);
                    let front = added(weighted(h, 0u, place), weighted(h, 1u, place));
                    let part = added(front, added(weighted(h, 2u, place), weighted(h, 3u, place)));
                    if h == 0u { sum = part; } else { sum = added(sum, part); }
                }
                // Indices are constants in turns that are unrolled, so that sums stay in registers.
                for (var k = 0u; k < PASSES; k += 1u) {
                    if k == p { so_far[k] = grown(so_far[k], sum, shrink, grow); }
                }
            }
        }
    }
    for (var p = 0u; p < PASSES; p += 1u) {
        write_tile(rows, row, strip + p * 16u + place.across, total, so_far[p]);
    }
}
