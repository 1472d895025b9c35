// Products of rows on tensor cores, for attention without a matrix of scores: f16 are multiplied, and added up in floats in the hardware's order. All
// matrices are [tokens, dim], of f16. `tokens` is a multiple of ROWS, and `dim` four or eight times SIDE, so that nothing is loaded from beyond them. A
// workgroup has ROWS rows of one matrix, SIDE for each subgroup, and goes through another one, ROWS of its rows at a time: the columns of a tile of scores. A
// kernel that includes this declares `params.tokens` and `params.dim`, and brings `across(at)`, the matrix of a core whose first quad is at `at`, of the rows
// that `add_weighted` adds.

// Quads of a matrix's row; lanes that share a row of scores, and the quads of each.
const STEP: u32 = SIDE / 4u;
const TEAM: u32 = LANES / SIDE;
const OWN: u32 = ROWS / 4u / TEAM;

// A matrix must begin at a multiple of 16 bytes. Rows are longer than what they hold, so that neighbors meet no bank twice.
const SCORES: u32 = ROWS / 4u + 1u;
const WEIGHTS: u32 = ROWS / 4u + 2u;
var<workgroup> scores: array<vec4<f32>, ROWS * SCORES>;
var<workgroup> weights: array<vec4<f16>, KINDS * ROWS * WEIGHTS>;

// What a workgroup makes of an output: ROWS rows of a head, from row0 on.
struct Tile { head: u32, row0: u32 }
// The first row of a subgroup in the tile, and a lane's row and its first quad there.
struct Place { first: u32, row: u32, quad: u32 }
// Matrices along a row, by name: compilers keep an array of them in memory.
struct Sums { a: Sum, b: Sum, c: Sum, d: Sum, e: Sum, f: Sum, g: Sum, h: Sum }

fn tile_of(index: u32) -> Tile {
    let tiles = params.tokens / ROWS;
    return Tile(index / tiles, index % tiles * ROWS);
}

fn place_of(lane: Lane) -> Place {
    let first = lane.subgroup * SIDE;
    return Place(first, first + lane.id / TEAM, lane.id % TEAM * OWN);
}

fn quads() -> u32 { return params.dim / 4u; }

// Leaves a matrix of scores in those of a subgroup's rows, from this column on.
fn lay_out(sum: Sum, column: u32, place: Place) {
    let at = place.first * SCORES + column / 4u;
    coopStoreT(sum, &scores[at], SCORES);
}

fn weight_matrix(kind: u32, column: u32, place: Place) -> Left {
    let at = (kind * ROWS + place.first) * WEIGHTS + column / 4u;
    return coopLoadT<Left>(&weights[at], WEIGHTS);
}

// Adds to a subgroup's rows ROWS rows from the quad `first` on, by the weights of a kind.
fn add_weighted(so_far: Sums, kind: u32, first: u32, place: Place) -> Sums {
    var sums = so_far;
    for (var column = 0u; column < ROWS; column += SIDE) {
        let weight = weight_matrix(kind, column, place);
        let at = first + column * quads();
        sums.a = coopMultiplyAdd(weight, across(at), sums.a);
        sums.b = coopMultiplyAdd(weight, across(at + STEP), sums.b);
        sums.c = coopMultiplyAdd(weight, across(at + 2u * STEP), sums.c);
        sums.d = coopMultiplyAdd(weight, across(at + 3u * STEP), sums.d);
        if params.dim > 4u * SIDE {
            sums.e = coopMultiplyAdd(weight, across(at + 4u * STEP), sums.e);
            sums.f = coopMultiplyAdd(weight, across(at + 5u * STEP), sums.f);
            sums.g = coopMultiplyAdd(weight, across(at + 6u * STEP), sums.g);
            sums.h = coopMultiplyAdd(weight, across(at + 7u * STEP), sums.h);
        }
    }
    return sums;
}

// Stores one of the matrices along a subgroup's rows, by way of workgroup memory, since lanes do not know which elements they hold.
fn store_part(tensor: u32, sum: Sum, part: u32, own: Tile, place: Place) {
    workgroupBarrier();
    let start = place.first * SCORES;
    coopStoreT(sum, &scores[start], SCORES);
    workgroupBarrier();
    let row = (own.head * params.tokens + own.row0 + place.row) * quads() + part * STEP;
    let first = place.quad / OWN * (STEP / TEAM);
    for (var i = first; i < first + STEP / TEAM; i += 1u) { store(tensor, row + i, scores[place.row * SCORES + i]); }
}

fn store_all(tensor: u32, sums: Sums, own: Tile, place: Place) {
    store_part(tensor, sums.a, 0u, own, place);
    store_part(tensor, sums.b, 1u, own, place);
    store_part(tensor, sums.c, 2u, own, place);
    store_part(tensor, sums.d, 3u, own, place);
    if params.dim > 4u * SIDE {
        store_part(tensor, sums.e, 4u, own, place);
        store_part(tensor, sums.f, 5u, own, place);
        store_part(tensor, sums.g, 6u, own, place);
        store_part(tensor, sums.h, 7u, own, place);
    }
}

// e^x, 0 where it is not seen.
fn exp_seen(x: vec4<f32>, seen: vec4<bool>) -> vec4<f32> {
    return select(vec4<f32>(), vec4<f32>(exp_negative(x.x), exp_negative(x.y), exp_negative(x.z), exp_negative(x.w)), seen);
}

fn four_from(first: u32) -> vec4<u32> { return first + vec4<u32>(0u, 1u, 2u, 3u); }
