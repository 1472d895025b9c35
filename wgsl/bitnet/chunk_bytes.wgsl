// For norm_bitlinear_block_float.wgsl: a chunk in planes of bytes (byte_planes.wgsl), for packed products of integers (block_float_rows.wgsl).

// Outside of branches, since a compiler may wait for each load within one.
const GAINS_AHEAD: bool = true;

// Vectors of a plane: one after every eight is not used, so that lanes do not wait for one bank.
const PLANE: u32 = THREADS + THREADS / 8u;

// A chunk's numbers in two planes of bytes, sixteen to a vector.
var<workgroup> x: array<vec4<u32>, 2u * PLANE>;
// The unit of a block, and of how many units it consists.
var<workgroup> units: array<vec2<f32>, BLOCKS>;

fn plane_at(vector: u32) -> u32 { return vector + vector / 8u; }

// Keeps a thread's four quads, in multiples of the unit of their block. Eight neighbors have a block, and must call this together.
fn keep(whole: array<vec4<f32>, 4>, unit: f32, ids: Ids) {
    // A float holds it.
    var sum = 0.0;
    var planes = array<vec2<u32>, 4>();
    for (var q = 0u; q < 4u; q += 1u) {
        let v = whole[q];
        sum += (v.x + v.y) + (v.z + v.w);
        planes[q] = byte_planes(whole_numbers(v));
    }
    let at = plane_at(ids.local);
    x[at] = vec4<u32>(planes[0].x, planes[1].x, planes[2].x, planes[3].x);
    x[at + PLANE] = vec4<u32>(planes[0].y, planes[1].y, planes[2].y, planes[3].y);
    sum += bitcast<f32>(team_exchange(bitcast<u32>(sum), 1u, ids));
    sum += bitcast<f32>(team_exchange(bitcast<u32>(sum), 2u, ids));
    sum += bitcast<f32>(team_exchange(bitcast<u32>(sum), 4u, ids));
    if ids.local % 8u == 0u { units[ids.local / 8u] = vec2<f32>(unit, sum); }
}

// Of a lane's block, what `of_block` takes, for all of its turns.
fn unit_of(lane: u32) -> vec2<f32> { return units[lane / 2u]; }

// The sums of a lane's block in the two rows, of four, that are its own: the first two, or the last two of an odd lane.
fn of_block(rows: Rows, lane: u32, odd: bool, unit: vec2<f32>, ids: Ids) -> vec2<f32> {
    var quad = Sums();
    for (var i = 0u; i < 4u; i += 1u) {
        let at = plane_at(4u * lane + i);
        quad = add_words(quad, rows, i, x[at], x[at + PLANE]);
    }
    let half = joined(quad);
    let whole = half + bitcast<vec4<i32>>(neighbours(bitcast<vec4<u32>>(half), ids));
    return (vec2<f32>(select(whole.xy, whole.zw, odd)) - vec2<f32>(unit.y)) * unit.x;
}
