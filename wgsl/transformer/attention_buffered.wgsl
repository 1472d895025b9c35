// As attention_all.wgsl for heads of 128, and the same bits. A thread has eight positions of half of each score's sums, and eight columns of the output,
// so that a vector of workgroup memory serves more products. What a turn needs is loaded while the turn before multiplies, into the other of two buffers.
// A share takes eight turns: of keys, four quads for each of the two sums that are made at once, and of values, every fourth pair of positions.
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<C>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<C>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Quads of a head.
const QUADS: u32 = COLUMNS / 4u;
const DOWN: u32 = TILE_X / 4u;
// A buffer has keys [8, SPAN] or values [16, QUADS], and beside them queries [8, TILE_X] or weights [SPAN / 2, DOWN], numbers of four rows each.
const BESIDE: u32 = 8u * SPAN;
const BUFFER: u32 = BESIDE + 8u * TILE_X;
// Sums of weights [8, DOWN], and what sums shrink and grow by [2, DOWN], in place of weights that the first turn has used.
const TOTALS: u32 = BESIDE;
const FACTORS: u32 = TOTALS + 8u * DOWN;
var<workgroup> staged: array<vec4<f32>, 2u * BUFFER>;

// Where a thread is in its workgroup, as in attention_all.wgsl; its group has half of the sums of a score.
struct Place { across: u32, down: u32, group: u32 }

fn place_of(local: u32) -> Place {
    let across = (local & 1u) | ((local >> 1u) & 6u);
    let down = ((local >> 1u) & 1u) | ((local >> 3u) & 2u) | ((local >> 6u) << 2u);
    return Place(across, down, (local >> 5u) & 1u);
}

// Eight positions of four rows; or of four rows, quads `across` and 16 further.
struct Wide { l: Tile, r: Tile }

fn added_wide(s: Wide, t: Wide) -> Wide { return Wide(added(s.l, t.l), added(s.r, t.r)); }

// Where the weights of a position are: by turns, then by positions. Neighboring positions begin with different rows, so that writes meet all banks.
fn slot(position: u32, down: u32) -> u32 {
    let n = position % 8u / 2u * 16u + position / 8u * 2u + position % 2u;
    return BESIDE + DOWN * n + n / 32u * BESIDE + turned_down(position, down);
}

fn turned_down(column: u32, down: u32) -> u32 { return down ^ ((column & 3u) << 1u); }

// What a thread loads in a turn, a quarter of a buffer in each.
struct Loaded { a: vec4<C>, b: vec4<C>, c: vec4<C>, d: vec4<C> }
struct Queries { a: vec4<f32>, b: vec4<f32> }

// Where keys, values, and the queries of a thread's two rows begin, and the positions that there are: beyond, these are taken again.
struct Origin { keys: u32, values: u32, first: u32, last: u32, query0: u32, query1: u32 }

fn inside(origin: Origin, position: u32) -> u32 { return clamp(position, origin.first, origin.last); }

// Where the queries of a row begin, in quads.
fn queries_of(rows: Rows, row: u32) -> u32 { return head_of(rows, row_of(rows, row), params.heads + 2u * params.kv_heads) * QUADS; }

// The quad of a head that is the i-th of a turn: four for the first group, then four for the second.
fn key_quad(turn: u32, i: u32) -> u32 { return i / 4u * 2u + turn / 2u + 4u * (turn % 2u * 4u + i % 4u); }

fn load_key(origin: Origin, start: u32, turn: u32, i: u32) -> vec4<C> {
    return keys[origin.keys + key_quad(turn, i / SPAN) * params.capacity + inside(origin, start + i % SPAN)];
}

fn load_keys(origin: Origin, start: u32, turn: u32, local: u32) -> Loaded {
    return Loaded(
        load_key(origin, start, turn, local),
        load_key(origin, start, turn, local + THREADS),
        load_key(origin, start, turn, local + 2u * THREADS),
        load_key(origin, start, turn, local + 3u * THREADS),
    );
}

fn load_queries(origin: Origin, turn: u32, local: u32) -> Queries {
    let quad = key_quad(turn, local % 8u);
    return Queries(qkv[origin.query0 + quad], qkv[origin.query1 + quad]);
}

// Positions 2·turn and 2·turn + 1 of every eight.
fn load_value(origin: Origin, start: u32, turn: u32, i: u32) -> vec4<C> {
    return values[origin.values + inside(origin, start + 2u * turn + i / QUADS % 2u + i / QUADS / 2u * 8u) * QUADS + i % QUADS];
}

fn load_values(origin: Origin, start: u32, turn: u32, local: u32) -> Loaded {
    return Loaded(
        load_value(origin, start, turn, local),
        load_value(origin, start, turn, local + THREADS),
        load_value(origin, start, turn, local + 2u * THREADS),
        load_value(origin, start, turn, local + 3u * THREADS),
    );
}

fn stage(v: Loaded, buffer: u32, local: u32) {
    let at = buffer * BUFFER + local;
    staged[at] = vec4<f32>(v.a);
    staged[at + THREADS] = vec4<f32>(v.b);
    staged[at + 2u * THREADS] = vec4<f32>(v.c);
    staged[at + 3u * THREADS] = vec4<f32>(v.d);
}

fn stage_queries(v: Queries, buffer: u32, local: u32) {
    let at = buffer * BUFFER + BESIDE + local % 8u * TILE_X + ((local / 8u) ^ (local % 8u));
    staged[at] = v.a * params.scale;
    staged[at + THREADS / 8u] = v.b * params.scale;
}

// In the order of attention_share.wgsl.
fn dot_quad(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum)))); }

fn dot_rows(q0: vec4<f32>, q1: vec4<f32>, q2: vec4<f32>, q3: vec4<f32>, k: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot_quad(q0, k, sum.x), dot_quad(q1, k, sum.y), dot_quad(q2, k, sum.z), dot_quad(q3, k, sum.w));
}

// Adds the products of the u-th quad of a turn. Each group begins with the positions that it keeps.
fn add_products(buffer: u32, u: u32, place: Place, sums: Wide) -> Wide {
    let i = 4u * place.group + u;
    let q = buffer * BUFFER + BESIDE + i * TILE_X + 4u * (place.down ^ place.group);
    let q0 = staged[q + u];
    let q1 = staged[q + (u ^ 1u)];
    let q2 = staged[q + (u ^ 2u)];
    let q3 = staged[q + (u ^ 3u)];
    let k = buffer * BUFFER + i * SPAN + place.across;
    let l = k + 32u * place.group;
    let r = k + 32u * (1u - place.group);
    return Wide(
        Tile(
            dot_rows(q0, q1, q2, q3, staged[l], sums.l.a),
            dot_rows(q0, q1, q2, q3, staged[l + 8u], sums.l.b),
            dot_rows(q0, q1, q2, q3, staged[l + 16u], sums.l.c),
            dot_rows(q0, q1, q2, q3, staged[l + 24u], sums.l.d),
        ),
        Tile(
            dot_rows(q0, q1, q2, q3, staged[r], sums.r.a),
            dot_rows(q0, q1, q2, q3, staged[r + 8u], sums.r.b),
            dot_rows(q0, q1, q2, q3, staged[r + 16u], sums.r.c),
            dot_rows(q0, q1, q2, q3, staged[r + 24u], sums.r.d),
        ),
    );
}

// Not a loop: as one, it waits for each quad's vectors.
fn products(buffer: u32, place: Place, sums: Wide) -> Wide {
    let two = add_products(buffer, 1u, place, add_products(buffer, 0u, place, sums));
    return add_products(buffer, 3u, place, add_products(buffer, 2u, place, two));
}

fn add_weighted(weight: vec4<f32>, value: vec4<f32>, sums: Tile) -> Tile {
    return Tile(
        fma(vec4<f32>(weight.x), value, sums.a),
        fma(vec4<f32>(weight.y), value, sums.b),
        fma(vec4<f32>(weight.z), value, sums.c),
        fma(vec4<f32>(weight.w), value, sums.d),
    );
}

// One of the eight sums of weighted values: of every eighth position, in the turns of `pair`, those of `buffer`.
fn weighted(pair: u32, buffer: u32, odd: u32, place: Place) -> Wide {
    var sums = Wide();
    let weights = BESIDE + pair * BUFFER + DOWN * (16u * buffer + odd) + turned_down(2u * buffer + odd, place.down);
    for (var m = 0u; m < SPAN / 8u; m += 1u) {
        let weight = staged[weights + 2u * DOWN * m];
        let at = buffer * BUFFER + (2u * m + odd) * QUADS + place.across + 8u * place.group;
        sums = Wide(add_weighted(weight, staged[at], sums.l), add_weighted(weight, staged[at + 16u], sums.r));
    }
    return sums;
}

fn two_weighted(pair: u32, buffer: u32, place: Place) -> Wide {
    return added_wide(weighted(pair, buffer, 0u, place), weighted(pair, buffer, 1u, place));
}

fn total_of(chain: u32, place: Place) -> vec4<f32> { return staged[TOTALS + chain * DOWN + turned_down(chain, place.down)]; }

// The sum of a share's weights, from the eight sums.
fn totals(place: Place) -> vec4<f32> {
    let early = (total_of(0u, place) + total_of(1u, place)) + (total_of(2u, place) + total_of(3u, place));
    let late = (total_of(4u, place) + total_of(5u, place)) + (total_of(6u, place) + total_of(7u, place));
    return early + late;
}

fn attend_all(group: Group, ids: Ids) {
    let taken = longest_first(group);
    let rows = rows_of(taken.x, taken.y, group.id.z);
    let place = place_of(ids.local);
    let row = 4u * place.down;
    let sixteenth = place.across + 8u * place.group;
    let all_see = end_of(rows, 0u);
    let all_begin = begin_of(rows, TILE_X - 1u);
    let line = rows.sequence * params.kv_heads + rows.kv_head;
    let origin = Origin(
        line * QUADS * params.capacity,
        line * params.capacity * QUADS,
        rows.start,
        max(rows.visible, 1u) - 1u,
        queries_of(rows, ids.local / 8u),
        queries_of(rows, ids.local / 8u + THREADS / 8u),
    );
    let begin = rows.start / SPAN * SPAN;
    stage(load_keys(origin, begin, 0u, ids.local), 0u, ids.local);
    stage_queries(load_queries(origin, 0u, ids.local), 0u, ids.local);
    workgroupBarrier();

    var largest = vec4<f32>(LOWEST);
    var total = vec4<f32>();
    var so_far = Wide();
    for (var start = begin; start < rows.visible; start += SPAN) {
        var next = Loaded();
        var more = Queries();
        // Of four sums for every score, a group has two: those of quads 0, 4, .. and 1, 5, .., or of quads 2, 6, .. and 3, 7, ..
        var wide = Wide();
        for (var pair = 0u; pair < 2u; pair += 1u) {
            next = load_keys(origin, start, 2u * pair + 1u, ids.local);
            more = load_queries(origin, 2u * pair + 1u, ids.local);
            var sums = products(0u, place, Wide());
            stage(next, 1u, ids.local);
            stage_queries(more, 1u, ids.local);
            workgroupBarrier();
            if pair == 0u {
                next = load_keys(origin, start, 2u, ids.local);
                more = load_queries(origin, 2u, ids.local);
            } else {
                next = load_values(origin, start, 0u, ids.local);
            }
            sums = products(1u, place, sums);
            wide = added_wide(wide, sums);
            if pair == 0u {
                stage(next, 0u, ids.local);
                stage_queries(more, 0u, ids.local);
            } else {
                // For the other group, in the first buffer, which nothing needs now.
                staged[ids.local] = wide.r.a;
                staged[THREADS + ids.local] = wide.r.b;
                staged[BESIDE + ids.local] = wide.r.c;
                staged[BESIDE + THREADS + ids.local] = wide.r.d;
            }
            workgroupBarrier();
        }
        let other = ids.local ^ 32u;
        var scores = added(wide.l, Tile(staged[other], staged[THREADS + other], staged[BESIDE + other], staged[BESIDE + THREADS + other]));
        let column = place.across + 32u * place.group;
        let position = start + column;
        if start + SPAN > all_see || start < all_begin {
            let ends = vec4<u32>(end_of(rows, row), end_of(rows, row + 1u), end_of(rows, row + 2u), end_of(rows, row + 3u));
            let begins =
                vec4<u32>(begin_of(rows, row), begin_of(rows, row + 1u), begin_of(rows, row + 2u), begin_of(rows, row + 3u));
            scores.a = seen(position, begins, ends, scores.a);
            scores.b = seen(position + 8u, begins, ends, scores.b);
            scores.c = seen(position + 16u, begins, ends, scores.c);
            scores.d = seen(position + 24u, begins, ends, scores.d);
        }
        // In the second buffer, which nothing needs now.
        staged[BUFFER + sixteenth * DOWN + turned_down(sixteenth, place.down)] = max(max(scores.a, scores.b), max(scores.c, scores.d));
        workgroupBarrier();
        var most = staged[BUFFER + turned_down(0u, place.down)];
        for (var i = 1u; i < 16u; i += 1u) { most = max(most, staged[BUFFER + i * DOWN + turned_down(i, place.down)]); }
        staged[slot(column, place.down)] = weights_of(scores.a, most);
        staged[slot(column + 8u, place.down)] = weights_of(scores.b, most);
        staged[slot(column + 16u, place.down)] = weights_of(scores.c, most);
        staged[slot(column + 24u, place.down)] = weights_of(scores.d, most);
        stage(next, 0u, ids.local);
        // As `merged`. What sums shrink and grow by is computed by two threads of the sixteen that need it.
        let top = max(largest, most);
        var factor = vec4<f32>();
        if sixteenth < 2u { factor = exp_negatives(select(most, largest, vec4<bool>(sixteenth == 0u)) - top); }
        largest = top;
        workgroupBarrier();

        // One of the eight sums of weights.
        var weights = vec4<f32>();
        if ids.local < 8u * DOWN {
            let chain = ids.local / DOWN;
            let at = slot(chain, turned_down(chain, ids.local % DOWN));
            for (var m = 0u; m < SPAN / 8u; m += 1u) { weights += staged[at + 2u * DOWN * m]; }
        }
        var shrink = vec4<f32>();
        var grow = vec4<f32>();
        var share = Wide();
        for (var pair = 0u; pair < 2u; pair += 1u) {
            next = load_values(origin, start, 2u * pair + 1u, ids.local);
            if pair == 1u {
                shrink = staged[FACTORS + place.down];
                grow = staged[FACTORS + DOWN + place.down];
                total = fma(totals(place), grow, total * shrink);
            }
            var sums = two_weighted(pair, 0u, place);
            stage(next, 1u, ids.local);
            workgroupBarrier();
            if pair == 0u {
                next = load_values(origin, start, 2u, ids.local);
                if ids.local < 8u * DOWN { staged[TOTALS + ids.local] = weights; }
                if sixteenth < 2u { staged[FACTORS + sixteenth * DOWN + place.down] = factor; }
            } else {
                // Of the share that follows. After the last, nobody needs them.
                next = load_keys(origin, start + SPAN, 0u, ids.local);
                more = load_queries(origin, 0u, ids.local);
            }
            sums = added_wide(sums, two_weighted(pair, 1u, place));
            stage(next, 0u, ids.local);
            if pair == 1u { stage_queries(more, 0u, ids.local); }
            share = added_wide(share, sums);
            workgroupBarrier();
        }
        so_far = Wide(grown(so_far.l, share.l, shrink, grow), grown(so_far.r, share.r, shrink, grow));
    }
    write_tile(rows, row, sixteenth, total, so_far.l);
    write_tile(rows, row, sixteenth + 16u, total, so_far.r);
}
