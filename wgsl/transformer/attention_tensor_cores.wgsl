// Causal attention of many new tokens on tensor cores, after rope.wgsl, from keys and values in f16: y as in attention_few.wgsl, but for its last bits,
// since queries and weights are multiplied as f16, and products added up in the hardware's order. A row is batch-invariant.
// A workgroup goes through all positions that its TILE_X rows see, SPAN at a time; a subgroup makes SIDE rows, of HEAD columns. Weights are
// e^(score - top): a matrix cannot be scaled row by row where it is, so `top` is no maximum, but no later score exceeds it by more than SLACK. Only where
// one would, the sums so far are scaled, by way of workgroup memory.
@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

// e^SLACK is far below the largest half.
const SLACK: f32 = 8.0;
const QUADS: u32 = HEAD / 4u;
// Matrices along a head, four or eight, and along the positions; quads of a matrix's row.
const ALONG: u32 = HEAD / SIDE;
const ACROSS: u32 = SPAN / SIDE;
const STEP: u32 = SIDE / 4u;
// Lanes that share a row, and the quads of a matrix that each has.
const TEAM: u32 = LANES / SIDE;
const OWN: u32 = STEP / TEAM;
// Quads of keys that a thread stages, and as many of values.
const STAGED: u32 = SPAN * QUADS / THREADS;

// A matrix must begin at a multiple of 16 bytes, and compilers lay these variables out one after another: each is a multiple of 16 bytes.
// Keys, then values, a line a position. Lines are two quads longer than what they hold, so that eight of them meet no bank twice.
const PITCH: u32 = QUADS + 2u;
var<workgroup> staged: array<vec4<f16>, 2u * SPAN * PITCH>;
// The rows' scores, or matrices of their sums; and their weights, or matrices of their queries.
const SCORES: u32 = SPAN / 4u + 1u;
const WEIGHTS: u32 = SPAN / 4u + 2u;
var<workgroup> scores: array<vec4<f32>, TILE_X * SCORES>;
var<workgroup> weights: array<vec4<f16>, TILE_X * WEIGHTS>;
// Has the top of a row grown?
var<workgroup> grown: vec4<u32>;

// The first row of a subgroup in the tile, a lane's row, and its first quad in that row of a matrix.
struct Place { first: u32, row: u32, quad: u32 }

alias Staged = array<vec4<f16>, STAGED>;
// Matrices along a head, by name: compilers keep an array of them in memory.
struct Queries { a: Left, b: Left, c: Left, d: Left, e: Left, f: Left, g: Left, h: Left }
struct Sums { a: Sum, b: Sum, c: Sum, d: Sum, e: Sum, f: Sum, g: Sum, h: Sum }

// Beyond the last position that is seen, it is taken again.
fn load_keys(rows: Rows, start: u32, local: u32) -> Staged {
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    var loaded = Staged();
    for (var n = 0u; n < STAGED; n += 1u) {
        let i = local + n * THREADS;
        loaded[n] = keys[(row * QUADS + i / SPAN) * params.capacity + min(start + i % SPAN, rows.visible - 1u)];
    }
    return loaded;
}
fn load_values(rows: Rows, start: u32, local: u32) -> Staged {
    let row = rows.sequence * params.kv_heads + rows.kv_head;
    var loaded = Staged();
    for (var n = 0u; n < STAGED; n += 1u) {
        let i = local + n * THREADS;
        loaded[n] = values[(row * params.capacity + min(start + i / QUADS, rows.visible - 1u)) * QUADS + i % QUADS];
    }
    return loaded;
}
fn stage_keys(loaded: Staged, local: u32) {
    var k = loaded;
    for (var n = 0u; n < STAGED; n += 1u) {
        let i = local + n * THREADS;
        staged[i % SPAN * PITCH + i / SPAN] = k[n];
    }
}
fn stage_values(loaded: Staged, local: u32) {
    var v = loaded;
    for (var n = 0u; n < STAGED; n += 1u) {
        let i = local + n * THREADS;
        staged[(SPAN + i / QUADS) * PITCH + i % QUADS] = v[n];
    }
}

// Where matrices that are stored one after another take turns, so that one may still be read while the next is written.
fn turn(part: u32) -> u32 { return part % 2u * STEP; }

// The part-th matrix of the rows' queries. All threads of the workgroup must call this together, as what follows.
fn query_matrix(query: u32, part: u32, place: Place) -> Left {
    for (var i = 0u; i < OWN; i += 1u) {
        weights[place.row * WEIGHTS + turn(part) + place.quad + i] = vec4<f16>(qkv[query + part * STEP + i] * params.scale);
    }
    workgroupBarrier();
    let at = place.first * WEIGHTS + turn(part);
    return coopLoadT<Left>(&weights[at], WEIGHTS);
}

// The products of the queries and SIDE of the keys.
fn product(queries: Queries, position: u32) -> Sum {
    let at = position * PITCH;
    var sum: Sum;
    sum = coopMultiplyAdd(queries.a, key_matrix(at), sum);
    sum = coopMultiplyAdd(queries.b, key_matrix(at + STEP), sum);
    sum = coopMultiplyAdd(queries.c, key_matrix(at + 2u * STEP), sum);
    sum = coopMultiplyAdd(queries.d, key_matrix(at + 3u * STEP), sum);
    if ALONG > 4u {
        sum = coopMultiplyAdd(queries.e, key_matrix(at + 4u * STEP), sum);
        sum = coopMultiplyAdd(queries.f, key_matrix(at + 5u * STEP), sum);
        sum = coopMultiplyAdd(queries.g, key_matrix(at + 6u * STEP), sum);
        sum = coopMultiplyAdd(queries.h, key_matrix(at + 7u * STEP), sum);
    }
    return sum;
}
fn key_matrix(at: u32) -> Right { return coopLoad<Right>(&staged[at], PITCH); }

// The sums with the values of SIDE positions, by their weights.
fn added(so_far: Sums, left: Left, position: u32) -> Sums {
    let at = (SPAN + position) * PITCH;
    var sums = so_far;
    sums.a = coopMultiplyAdd(left, value_matrix(at), sums.a);
    sums.b = coopMultiplyAdd(left, value_matrix(at + STEP), sums.b);
    sums.c = coopMultiplyAdd(left, value_matrix(at + 2u * STEP), sums.c);
    sums.d = coopMultiplyAdd(left, value_matrix(at + 3u * STEP), sums.d);
    if ALONG > 4u {
        sums.e = coopMultiplyAdd(left, value_matrix(at + 4u * STEP), sums.e);
        sums.f = coopMultiplyAdd(left, value_matrix(at + 5u * STEP), sums.f);
        sums.g = coopMultiplyAdd(left, value_matrix(at + 6u * STEP), sums.g);
        sums.h = coopMultiplyAdd(left, value_matrix(at + 7u * STEP), sums.h);
    }
    return sums;
}
fn value_matrix(at: u32) -> Right { return coopLoadT<Right>(&staged[at], PITCH); }

// A matrix, row by row, in workgroup memory.
fn lay_out(sum: Sum, part: u32, place: Place) {
    let at = place.first * SCORES + turn(part);
    coopStoreT(sum, &scores[at], SCORES);
    workgroupBarrier();
}

// A matrix, every row by its lane's number.
fn scaled(sum: Sum, part: u32, place: Place, factor: f32) -> Sum {
    lay_out(sum, part, place);
    for (var i = 0u; i < OWN; i += 1u) { scores[place.row * SCORES + turn(part) + place.quad + i] *= factor; }
    workgroupBarrier();
    let at = place.first * SCORES + turn(part);
    return coopLoadT<Sum>(&scores[at], SCORES);
}

// Writes a matrix, every row divided by its lane's number.
fn write(sum: Sum, part: u32, place: Place, total: f32, output: u32, present: bool) {
    lay_out(sum, part, place);
    if present {
        for (var i = 0u; i < OWN; i += 1u) {
            let at = output + part * STEP + i;
            let attended = scores[place.row * SCORES + turn(part) + place.quad + i] / total;
            if params.add != 0u { y[at] += attended; } else { y[at] = attended; }
        }
    }
}

fn most_of(v: vec4<f32>) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }

// Over the lanes of a row.
fn team_max(v: f32) -> f32 {
    var most = v;
    for (var mask = 1u; mask < TEAM; mask *= 2u) { most = max(most, subgroupShuffleXor(most, mask)); }
    return most;
}
fn team_add(v: f32) -> f32 {
    var sum = v;
    for (var mask = 1u; mask < TEAM; mask *= 2u) { sum += subgroupShuffleXor(sum, mask); }
    return sum;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_tensor_cores(group: Group, ids: Ids, lane: Lane) {
    let taken = longest_first(group);
    let rows = rows_of(taken.x, taken.y, group.id.z);
    let place = Place(lane.subgroup * SIDE, lane.subgroup * SIDE + lane.id / TEAM, lane.id % TEAM * OWN);
    // Rows that do not exist are the last one, and not written.
    let present = rows.first + place.row < rows.count;
    let row = min(rows.first + place.row, rows.count - 1u);
    let end = min(rows.past + row / rows.sharing + 1u, rows.visible);
    let all_see = min(rows.past + rows.first / rows.sharing + 1u, rows.visible);

    var next_keys = load_keys(rows, 0u, ids.local);
    var next_values = load_values(rows, 0u, ids.local);
    let query = head_of(rows, row, params.heads + 2u * params.kv_heads) * QUADS + place.quad;
    var queries: Queries;
    queries.a = query_matrix(query, 0u, place);
    queries.b = query_matrix(query, 1u, place);
    queries.c = query_matrix(query, 2u, place);
    queries.d = query_matrix(query, 3u, place);
    if ALONG > 4u {
        queries.e = query_matrix(query, 4u, place);
        queries.f = query_matrix(query, 5u, place);
        queries.g = query_matrix(query, 6u, place);
        queries.h = query_matrix(query, 7u, place);
    }
    stage_keys(next_keys, ids.local);
    next_keys = load_keys(rows, SPAN, ids.local);
    grown.x = 0u;
    workgroupBarrier();

    var sums: Sums;
    var top = LOWEST;
    var total = 0.0;
    for (var start = 0u; start < rows.visible; start += SPAN) {
        for (var a = 0u; a < ACROSS; a += 1u) {
            let at = place.first * SCORES + a * STEP;
            coopStoreT(product(queries, a * SIDE), &scores[at], SCORES);
        }
        workgroupBarrier();
        // Nobody reads these keys any more, nor the values before. Those that follow are on their way meanwhile.
        stage_keys(next_keys, ids.local);
        stage_values(next_values, ids.local);
        next_keys = load_keys(rows, start + 2u * SPAN, ids.local);
        next_values = load_values(rows, start + SPAN, ids.local);

        var v = array<vec4<f32>, ACROSS * OWN>();
        var most = LOWEST;
        for (var i = 0u; i < ACROSS * OWN; i += 1u) {
            let quad = i / OWN * STEP + place.quad + i % OWN;
            v[i] = scores[place.row * SCORES + quad];
            if start + SPAN > all_see {
                v[i] = select(vec4<f32>(LOWEST), v[i], vec4<u32>(start + 4u * quad) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(end));
            }
            most = max(most, most_of(v[i]));
        }
        most = team_max(most);
        var shrink = 1.0;
        if most > top + SLACK {
            shrink = exp(top - most);
            top = most;
            // Of the first positions there are no sums yet.
            if start > 0u { grown.x = 1u; }
        }
        var own = vec4<f32>();
        for (var i = 0u; i < ACROSS * OWN; i += 1u) {
            let w = vec4<f16>(exp(v[i] - top));
            own += vec4<f32>(w);
            weights[place.row * WEIGHTS + i / OWN * STEP + place.quad + i % OWN] = w;
        }
        total = total * shrink + ((own.x + own.y) + (own.z + own.w));
        let grew = workgroupUniformLoad(&grown).x;
        grown.x = 0u;
        if grew != 0u {
            sums.a = scaled(sums.a, 0u, place, shrink);
            sums.b = scaled(sums.b, 1u, place, shrink);
            sums.c = scaled(sums.c, 2u, place, shrink);
            sums.d = scaled(sums.d, 3u, place, shrink);
            if ALONG > 4u {
                sums.e = scaled(sums.e, 4u, place, shrink);
                sums.f = scaled(sums.f, 5u, place, shrink);
                sums.g = scaled(sums.g, 6u, place, shrink);
                sums.h = scaled(sums.h, 7u, place, shrink);
            }
        }
        for (var a = 0u; a < ACROSS; a += 1u) {
            let at = place.first * WEIGHTS + a * STEP;
            sums = added(sums, coopLoadT<Left>(&weights[at], WEIGHTS), a * SIDE);
        }
    }

    total = team_add(total);
    let output = head_of(rows, row, params.heads) * QUADS + place.quad;
    // Scores are read no more, but perhaps sums that were scaled.
    workgroupBarrier();
    write(sums.a, 0u, place, total, output, present);
    write(sums.b, 1u, place, total, output, present);
    write(sums.c, 2u, place, total, output, present);
    write(sums.d, 3u, place, total, output, present);
    if ALONG > 4u {
        write(sums.e, 4u, place, total, output, present);
        write(sums.f, 5u, place, total, output, present);
        write(sums.g, 6u, place, total, output, present);
        write(sums.h, 7u, place, total, output, present);
    }
}
