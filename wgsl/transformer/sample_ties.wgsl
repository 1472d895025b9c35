// The end of a search: how many logits of the key that it ends in are kept; and how many of that key each chunk has.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> largest: array<u32>;
@group(0) @binding(2) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> path: array<u32>;
@group(0) @binding(4) var<storage, read_write> ties: array<u32>;
@group(0) @binding(5) var<storage, read> draws: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> runs: array<vec2<u32>>;

// The fewest times that `amount` has to be taken to reach `need`.
fn least_times(amount: u32, need: Wide) -> u32 {
    var short = 0u;
    for (var bit = 0x80000000u; bit != 0u; bit >>= 1u) {
        if is_less(product(amount, short | bit), need) { short |= bit; }
    }
    return short + 1u;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sample_ties(group: Group, ids: Ids) {
    let row = group.id.y;
    let draw = draw_of(row);
    var end = settled(row, draw, ids);
    let top = largest_key(row, ids);
    var equal = 0u;
    for (var u = 0u; u < TURNS; u += 1u) { equal += u32(key_at(row, first_column(group, ids) + u) == end.key); }
    equal = group_sum2_u32(Wide(equal, 0u), ids).x;
    if ids.local != 0u { return; }
    ties[row * params.chunks + group.id.x] = equal;
    if group.id.x == 0u {
        // A search by weight is the last, where there is one.
        if searches(draw, WEIGHTS) { end.need = Wide(least_times(weight(octaves_below(top, end.key, draw.scale)), end.need), 0u); }
        keep(row, end);
    }
}
