// flash_attention_dkdv.wgsl on tensor cores.
struct Params { groups: u32, tokens: u32, dim: u32, sharing: u32, causal: u32, add_k: u32, add_v: u32, scale: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> q: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read> dy: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read> lse: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> delta: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> dk: array<vec4<f16>>;
@group(0) @binding(7) var<storage, read_write> dv: array<vec4<f16>>;

const KEYS: u32 = 0u;
const VALUES: u32 = 1u;
// What weights are: chances, by which slopes are added to dv, and their gradients, by which queries are added to dk.
const CHANCES: u32 = 0u;
const GRADIENTS: u32 = 1u;
// Products of rows whose first quads are at `own` and `other`: of keys and queries, of values and slopes.
fn chance_products(own: u32, other: u32) -> Sum {
    var sum: Sum;
    for (var d = 0u; d < quads(); d += STEP) {
        let left = own + d;
        let right = other + d;
        sum = coopMultiplyAdd(coopLoadT<Left>(&k[left], quads()), coopLoad<Right>(&q[right], quads()), sum);
    }
    return sum;
}
fn slope_products(own: u32, other: u32) -> Sum {
    var sum: Sum;
    for (var d = 0u; d < quads(); d += STEP) {
        let left = own + d;
        let right = other + d;
        sum = coopMultiplyAdd(coopLoadT<Left>(&v[left], quads()), coopLoad<Right>(&dy[right], quads()), sum);
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
fn across(at: u32) -> Right { return coopLoadT<Right>(&q[at], quads()); }
fn slopes_across(at: u32) -> Right { return coopLoadT<Right>(&dy[at], quads()); }

// `add_weighted` of slopes, by chances. A function cannot choose between tensors by an argument: matrices need uniform control flow.
fn add_slopes(so_far: Sums, first: u32, place: Place) -> Sums {
    var sums = so_far;
    for (var column = 0u; column < ROWS; column += SIDE) {
        let weight = weight_matrix(CHANCES, column, place);
        let at = first + column * quads();
        sums.a = coopMultiplyAdd(weight, slopes_across(at), sums.a);
        sums.b = coopMultiplyAdd(weight, slopes_across(at + STEP), sums.b);
        sums.c = coopMultiplyAdd(weight, slopes_across(at + 2u * STEP), sums.c);
        sums.d = coopMultiplyAdd(weight, slopes_across(at + 3u * STEP), sums.d);
        if params.dim > 4u * SIDE {
            sums.e = coopMultiplyAdd(weight, slopes_across(at + 4u * STEP), sums.e);
            sums.f = coopMultiplyAdd(weight, slopes_across(at + 5u * STEP), sums.f);
            sums.g = coopMultiplyAdd(weight, slopes_across(at + 6u * STEP), sums.g);
            sums.h = coopMultiplyAdd(weight, slopes_across(at + 7u * STEP), sums.h);
        }
    }
    return sums;
}

fn store(tensor: u32, at: u32, made: vec4<f32>) {
    if tensor == KEYS {
        let slope = params.scale * made;
        if params.add_k != 0u { dk[at] = vec4<f16>(vec4<f32>(dk[at]) + slope); } else { dk[at] = vec4<f16>(slope); }
    } else {
        if params.add_v != 0u { dv[at] = vec4<f16>(vec4<f32>(dv[at]) + made); } else { dv[at] = vec4<f16>(made); }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attend(group: Group, lane: Lane) {
    let index = flat_group(group);
    if index >= params.groups { return; }
    let tile = tile_of(index);
    let place = place_of(lane);
    let own = (tile.head * params.tokens + tile.row0 + place.first) * quads();
    let lowest = vec4<u32>(select(0u, tile.row0 + place.row, params.causal != 0u));
    var of_k: Sums;
    var of_v: Sums;
    for (var head = tile.head * params.sharing; head < (tile.head + 1u) * params.sharing; head += 1u) {
        // Queries before a key do not see it.
        for (var first = select(0u, tile.row0, params.causal != 0u); first < params.tokens; first += ROWS) {
            let at = (head * params.tokens + first) * quads();
            let numbers = (head * params.tokens + first) / 4u;
            score_chances(own, at, place);
            for (var i = place.quad; i < place.quad + OWN; i += 1u) {
                let seen = four_from(first + 4u * i) >= lowest;
                let chances = exp_seen(params.scale * scores[place.row * SCORES + i] - lse[numbers + i], seen);
                weights[place.row * WEIGHTS + i] = vec4<f16>(chances);
            }
            workgroupBarrier();
            score_slopes(own, at, place);
            for (var i = place.quad; i < place.quad + OWN; i += 1u) {
                let chances = vec4<f32>(weights[place.row * WEIGHTS + i]);
                let slopes = chances * (scores[place.row * SCORES + i] - delta[numbers + i]);
                weights[(ROWS + place.row) * WEIGHTS + i] = vec4<f16>(slopes);
            }
            workgroupBarrier();
            of_v = add_slopes(of_v, at, place);
            of_k = add_weighted(of_k, GRADIENTS, at, place);
        }
    }
    store_all(KEYS, of_k, tile, place);
    store_all(VALUES, of_v, tile, place);
}
