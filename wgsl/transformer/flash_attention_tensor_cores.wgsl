// flash_attention.wgsl on tensor cores. The logarithms of sums come first; scores are then computed again, so that no sum has to be scaled row by row.
struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> q: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

// Products of queries and keys, whose first quads are at `own` and `other`.
fn products(own: u32, other: u32) -> Sum {
    var sum: Sum;
    for (var d = 0u; d < quads(); d += STEP) {
        let left = own + d;
        let right = other + d;
        sum = coopMultiplyAdd(coopLoadT<Left>(&q[left], quads()), coopLoad<Right>(&k[right], quads()), sum);
    }
    return sum;
}
// Leaves those of a subgroup's queries and ROWS keys in `scores`.
fn score(own: u32, other: u32, place: Place) {
    for (var column = 0u; column < ROWS; column += SIDE) { lay_out(products(own, other + column * quads()), column, place); }
    workgroupBarrier();
}
fn across(at: u32) -> Right { return coopLoadT<Right>(&v[at], quads()); }

fn store(tensor: u32, at: u32, made: vec4<f32>) {
    if params.add != 0u { y[at] = vec4<f16>(vec4<f32>(y[at]) + made); } else { y[at] = vec4<f16>(made); }
}

// The largest score and Σ e^(score - largest) of each lane.
var<workgroup> shares: array<vec2<f32>, THREADS>;

const LOWEST: f32 = -3.4028234e38;

// The logarithm of Σ e^score over what a lane's row sees.
fn logarithm(own: u32, others: u32, end: u32, visible: u32, place: Place, lane: Lane) -> f32 {
    var largest = LOWEST;
    var total = 0.0;
    for (var first = 0u; first < end; first += ROWS) {
        score(own, others + first * quads(), place);
        let before = largest;
        for (var i = place.quad; i < place.quad + OWN; i += 1u) {
            let s = select(vec4<f32>(LOWEST), params.scale * scores[place.row * SCORES + i], four_from(first + 4u * i) < vec4<u32>(visible));
            largest = max(largest, max(max(s.x, s.y), max(s.z, s.w)));
        }
        total *= exp_negative(before - largest);
        for (var i = place.quad; i < place.quad + OWN; i += 1u) {
            let seen = four_from(first + 4u * i) < vec4<u32>(visible);
            let e = exp_seen(params.scale * scores[place.row * SCORES + i] - largest, seen);
            total += (e.x + e.y) + (e.z + e.w);
        }
        workgroupBarrier();
    }
    let team = lane.subgroup * LANES + lane.id / TEAM * TEAM;
    shares[team + lane.id % TEAM] = vec2<f32>(largest, total);
    workgroupBarrier();
    for (var i = 0u; i < TEAM; i += 1u) { largest = max(largest, shares[team + i].x); }
    total = 0.0;
    for (var i = 0u; i < TEAM; i += 1u) { total += shares[team + i].y * exp_negative(shares[team + i].x - largest); }
    return largest + log_positive(total);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attend(group: Group, lane: Lane) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let tile = tile_of(index);
    let place = place_of(lane);
    let own = (tile.head * params.tokens + tile.row0 + place.first) * quads();
    let others = tile.head / params.sharing * params.tokens * quads();
    let row = tile.row0 + place.row;
    let end = select(params.tokens, tile.row0 + ROWS, params.causal != 0u);
    let visible = select(params.tokens, row + 1u, params.causal != 0u);
    let log_total = logarithm(own, others, end, visible, place, lane);
    if lane.id % TEAM == 0u { lse[tile.head * params.tokens + row] = log_total; }
    var sums: Sums;
    for (var first = 0u; first < end; first += ROWS) {
        score(own, others + first * quads(), place);
        for (var i = place.quad; i < place.quad + OWN; i += 1u) {
            let seen = four_from(first + 4u * i) < vec4<u32>(visible);
            weights[place.row * WEIGHTS + i] = vec4<f16>(exp_seen(params.scale * scores[place.row * SCORES + i] - log_total, seen));
        }
        workgroupBarrier();
        sums = add_weighted(sums, 0u, others + first * quads(), place);
    }
    store_all(0u, sums, tile, place);
}
