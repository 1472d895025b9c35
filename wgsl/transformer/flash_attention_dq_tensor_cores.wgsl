// flash_attention_dq.wgsl on tensor cores.
struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> q: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read> dy: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dq: array<vec4<f16>>;

// Products of rows whose first quads are at `own` and `other`: of queries and keys, of slopes and values.
fn chance_products(own: u32, other: u32) -> Sum {
    var sum: Sum;
    for (var d = 0u; d < quads(); d += STEP) {
        let left = own + d;
        let right = other + d;
        sum = coopMultiplyAdd(coopLoadT<Left>(&q[left], quads()), coopLoad<Right>(&k[right], quads()), sum);
    }
    return sum;
}
fn slope_products(own: u32, other: u32) -> Sum {
    var sum: Sum;
    for (var d = 0u; d < quads(); d += STEP) {
        let left = own + d;
        let right = other + d;
        sum = coopMultiplyAdd(coopLoadT<Left>(&dy[left], quads()), coopLoad<Right>(&v[right], quads()), sum);
    }
    return sum;
}
// Leaves those of a subgroup's rows and ROWS others in `scores`.
fn score_chances(own: u32, other: u32, place: Place) {
    for (var column = 0u; column < ROWS; column += SIDE) { lay_out(chance_products(own, other + column * quads()), column, place); }
    workgroupBarrier();
}
fn score_slopes(own: u32, other: u32, place: Place) {
    for (var column = 0u; column < ROWS; column += SIDE) { lay_out(slope_products(own, other + column * quads()), column, place); }
    workgroupBarrier();
}
fn across(at: u32) -> Right { return coopLoadT<Right>(&k[at], quads()); }

fn store(tensor: u32, at: u32, made: vec4<f32>) {
    let slope = params.scale * made;
    if params.add != 0u { dq[at] = vec4<f16>(vec4<f32>(dq[at]) + slope); } else { dq[at] = vec4<f16>(slope); }
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
    let logarithm = lse[tile.head * params.tokens + row];
    let mean = delta[tile.head * params.tokens + row];
    let end = select(params.tokens, tile.row0 + ROWS, params.causal != 0u);
    let visible = select(params.tokens, row + 1u, params.causal != 0u);
    var sums: Sums;
    for (var first = 0u; first < end; first += ROWS) {
        let at = others + first * quads();
        score_chances(own, at, place);
        for (var i = place.quad; i < place.quad + OWN; i += 1u) {
            let seen = four_from(first + 4u * i) < vec4<u32>(visible);
            weights[place.row * WEIGHTS + i] = vec4<f16>(exp_seen(params.scale * scores[place.row * SCORES + i] - logarithm, seen));
        }
        workgroupBarrier();
        score_slopes(own, at, place);
        for (var i = place.quad; i < place.quad + OWN; i += 1u) {
            let weight = vec4<f32>(weights[place.row * WEIGHTS + i]);
            weights[place.row * WEIGHTS + i] = vec4<f16>(weight * (scores[place.row * SCORES + i] - mean));
        }
        workgroupBarrier();
        sums = add_weighted(sums, 0u, at, place);
    }
    store_all(0u, sums, tile, place);
}
