// One pass of a search (see sample_path): for each value of a digit of the key, how many logits have it after the digits so far, or their weight. A
// search by weight among the k largest knows their smallest key, and how many of that key they are: in its first pass it leaves out what is beyond.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> largest: array<u32>;
@group(0) @binding(2) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> path: array<u32>;
@group(0) @binding(4) var<storage, read> draws: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> runs: array<vec2<u32>>;

var<workgroup> lower: array<atomic<u32>, THREADS>;
var<workgroup> higher: array<atomic<u32>, THREADS>;

fn count_in(digit: u32, amount: Wide) {
    if amount.x == 0u && amount.y == 0u { return; }
    let old = atomicAdd(&lower[digit], amount.x);
    let carried = amount.y + u32(old + amount.x < old);
    if carried != 0u { atomicAdd(&higher[digit], carried); }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn sample_count(group: Group, ids: Ids) {
    let row = group.id.y;
    let draw = draw_of(row);
    let before = settled(row, draw, ids);
    let top = largest_key(row, ids);
    atomicStore(&lower[ids.local], 0u);
    atomicStore(&higher[ids.local], 0u);
    workgroupBarrier();
    let by_weight = params.kind == WEIGHTS;
    let searched = searches(draw, params.kind);
    let begins = params.shift == 24u;
    let mask = select(0xffffffffu << ((params.shift + 8u) & 31u), 0u, begins);
    for (var u = 0u; u < TURNS; u += 1u) {
        let key = key_at(row, first_column(group, ids) + u);
        let meant = select((key & mask) == before.key, !by_weight || key > before.key, begins);
        if searched && key != 0u && meant {
            var amount = 1u;
            if by_weight { amount = weight(octaves_below(top, key, draw.scale)); }
            count_in((key >> params.shift) & 255u, Wide(amount, 0u));
        }
    }
    if group.id.x == 0u && ids.local == 0u {
        if searched && by_weight && begins && before.key != 0u {
            count_in(before.key >> 24u, product(weight(octaves_below(top, before.key, draw.scale)), before.need.x));
        }
        keep(row, before);
    }
    workgroupBarrier();
    let own = Wide(atomicLoad(&lower[ids.local]), atomicLoad(&higher[ids.local]));
    if own.x == 0u && own.y == 0u { return; }
    let at = 2u * ((row * params.passes + params.pass_index) * THREADS + ids.local);
    let old = atomicAdd(&bins[at], own.x);
    let carried = own.y + u32(old + own.x < old);
    if carried != 0u { atomicAdd(&bins[at + 1u], carried); }
}
