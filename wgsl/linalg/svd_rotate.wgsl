// A step of the one-sided Jacobi method on the rows of svd_load.wgsl, by pairs of blocks of HALF rows. A workgroup takes the 2·HALF = BLOCK rows of a
// pair, computes the products G of their first halves, makes G more diagonal by one sweep of Jacobi rotations, each of which is also applied to J, at
// first the identity, and replaces the rows by J·rows. Pairs of a round are disjoint, and the rounds of a sweep meet each pair of blocks once.
// `cosines` has for each place in a round the largest cosine between two rows that was met in the sweep. Matrices whose status is 0 have converged;
// they are left alone, as are those not finite.
struct Params { groups: u32, q: u32, blocks: u32, round: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> status: array<u32>;
@group(0) @binding(1) var<storage, read_write> rows: array<f32>;
@group(0) @binding(2) var<storage, read_write> cosines: array<f32>;

const HALF: u32 = BLOCK / 2u;
const PITCH: u32 = BLOCK + 1u;
const LANES: u32 = THREADS / BLOCK;
const SHARE: u32 = BLOCK / LANES;
var<workgroup> tile: array<f32, BLOCK * PITCH>;
var<workgroup> g: array<f32, BLOCK * PITCH>;
var<workgroup> joined: array<f32, BLOCK * PITCH>;
var<workgroup> turns: array<vec2<f32>, HALF>;

// Two of `players`, an even number, that meet in a round: the last stays, and the others move around a circle.
fn pairing(players: u32, round: u32, place: u32) -> vec2<u32> {
    let circle = players - 1u;
    if place == 0u { return vec2<u32>(round, circle); }
    return vec2<u32>((round + place) % circle, (round + circle - place) % circle);
}

// Where row i of the pair `blocks` lies; beyond the last row there are zeros.
fn row_of(blocks: vec2<u32>, i: u32) -> u32 { return select(blocks.x * HALF + i, blocks.y * HALF + i - HALF, i >= HALF); }

fn load(base: u32, blocks: vec2<u32>, column0: u32, end: u32, local: u32) {
    for (var i = local; i < BLOCK * BLOCK; i += THREADS) {
        let row = row_of(blocks, i / BLOCK);
        let column = column0 + i % BLOCK;
        var v = 0.0;
        if row < params.q && column < end { v = rows[base + row * 2u * params.q + column]; }
        tile[i / BLOCK * PITCH + i % BLOCK] = v;
    }
}

// The rotation by the angle that makes two rows orthogonal, given their squares and their product (Rutishauser 1966, The Jacobi method for real
// symmetric matrices): its sine and the tangent h of half the angle. x - s·(y + h·x) and y + s·(x - h·y) are as long as x and y as far as s = 2h / (1
// + h²), so that is computed with care. By cosine and sine, thousands of rotations would lengthen or shorten rows by a few units each.
fn turn(x: f32, y: f32, product: f32) -> vec2<f32> {
    // What is far below rounding is not turned: of these rows, or of the matrix, whose numbers are near 1.
    if abs(product) <= max(1e-9 * sqrt(x) * sqrt(y), 1e-36) { return vec2<f32>(); }
    let zeta = (y - x) / (2.0 * product);
    var t = 0.5 / zeta;
    // So large a square would overflow.
    if abs(zeta) < 1e9 { t = select(-1.0, 1.0, zeta >= 0.0) / (abs(zeta) + sqrt(1.0 + zeta * zeta)); }
    let h = t / (1.0 + sqrt(1.0 + t * t));
    let sine = 2.0 * h / (1.0 + h * h);
    return vec2<f32>(sine + (2.0 * h - sine - sine * h * h) / (1.0 + h * h), h);
}

fn turned(x: f32, y: f32, by: vec2<f32>) -> vec2<f32> { return vec2<f32>(x - by.x * (y + by.y * x), y + by.x * (x - by.y * y)); }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn svd_rotate(group: Group, ids: Ids) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let places = params.blocks / 2u;
    let matrix = index / places;
    if status[matrix] == 0u || status[matrix] == NOT_FINITE { return; }
    let width = 2u * params.q;
    let base = matrix * params.q * width;
    let blocks = pairing(params.blocks, params.round, index % places);
    // A thread has one column, and every LANES-th row of a tile.
    let c = ids.local % BLOCK;
    let lane = ids.local / BLOCK;

    var sums = array<f32, SHARE>();
    for (var column0 = 0u; column0 < params.q; column0 += BLOCK) {
        load(base, blocks, column0, params.q, ids.local);
        workgroupBarrier();
        for (var k = 0u; k < BLOCK; k += 1u) {
            for (var s = 0u; s < SHARE; s += 1u) { sums[s] += tile[(lane + s * LANES) * PITCH + k] * tile[c * PITCH + k]; }
        }
        workgroupBarrier();
    }
    for (var s = 0u; s < SHARE; s += 1u) {
        let r = lane + s * LANES;
        g[r * PITCH + c] = sums[s];
        joined[r * PITCH + c] = select(0.0, 1.0, r == c);
    }
    workgroupBarrier();
    var cosine = 0u;
    for (var s = 0u; s < SHARE; s += 1u) {
        let r = lane + s * LANES;
        let sizes = sqrt(g[r * PITCH + r]) * sqrt(g[c * PITCH + c]);
        // In quotients of numbers that small there is nothing but rounding.
        if r != c && sizes > 1e-30 { cosine = max(cosine, magnitude(sums[s] / sizes)); }
    }
    cosine = tree_max(cosine, ids.local);
    if ids.local == 0u { cosines[index] = bitcast<f32>(max(select(0u, bitcast<u32>(cosines[index]), params.round > 0u), cosine)); }

    for (var round = 0u; round < BLOCK - 1u; round += 1u) {
        if ids.local < HALF {
            let pair = pairing(BLOCK, round, ids.local);
            turns[ids.local] = turn(g[pair.x * PITCH + pair.x], g[pair.y * PITCH + pair.y], g[pair.x * PITCH + pair.y]);
        }
        workgroupBarrier();
        // Rows of G and of J, then columns of G.
        for (var i = ids.local; i < HALF * BLOCK; i += THREADS) {
            let pair = pairing(BLOCK, round, i / BLOCK) * PITCH + i % BLOCK;
            let by = turns[i / BLOCK];
            let of_g = turned(g[pair.x], g[pair.y], by);
            let of_j = turned(joined[pair.x], joined[pair.y], by);
            g[pair.x] = of_g.x;
            g[pair.y] = of_g.y;
            joined[pair.x] = of_j.x;
            joined[pair.y] = of_j.y;
        }
        workgroupBarrier();
        for (var i = ids.local; i < HALF * BLOCK; i += THREADS) {
            let pair = pairing(BLOCK, round, i / BLOCK) + i % BLOCK * PITCH;
            let by = turns[i / BLOCK];
            let of_g = turned(g[pair.x], g[pair.y], by);
            g[pair.x] = of_g.x;
            g[pair.y] = of_g.y;
        }
        workgroupBarrier();
    }

    for (var column0 = 0u; column0 < width; column0 += BLOCK) {
        load(base, blocks, column0, width, ids.local);
        workgroupBarrier();
        for (var s = 0u; s < SHARE; s += 1u) {
            let r = lane + s * LANES;
            let row = row_of(blocks, r);
            if row < params.q && column0 + c < width {
                var sum = 0.0;
                for (var k = 0u; k < BLOCK; k += 1u) { sum += joined[r * PITCH + k] * tile[k * PITCH + c]; }
                rows[base + row * width + column0 + c] = sum;
            }
        }
        workgroupBarrier();
    }
}
