// For norm_bitlinear_block_float.wgsl: a chunk in floats, for devices without packed products of integers (bitlinear_float_word.wgsl).

// A branch saves registers and instructions.
const GAINS_AHEAD: bool = false;

// Of each quad of words, the quads of numbers that it meets, by place: lanes have neighboring ones at a time.
var<workgroup> x: array<vec4<f32>, 16u * WIDTH>;

// Keeps a thread's four quads, which are multiples of the unit of their block. Four neighbors have those of a quad of words.
fn keep(whole: array<vec4<f32>, 4>, unit: f32, ids: Ids) {
    for (var q = 0u; q < 4u; q += 1u) { x[(4u * (ids.local % 4u) + q) * WIDTH + ids.local / 4u] = whole[q] * unit; }
}

// Numbers are what they are.
fn unit_of(lane: u32) -> vec2<f32> { return vec2<f32>(); }

// The sums of a lane's block in the two rows, of four, that are its own: the first two, or the last two of an odd lane. Half sums of a block are exact, and so is
// their sum.
fn of_block(rows: Rows, lane: u32, odd: bool, unit: vec2<f32>, ids: Ids) -> vec2<f32> {
    var half = vec4<f32>();
    for (var i = 0u; i < 4u; i += 1u) {
        for (var f = 0u; f < 4u; f += 1u) {
            let w = Block(weights(rows.a[i], f), weights(rows.b[i], f), weights(rows.c[i], f), weights(rows.d[i], f));
            half = rows_dot(w, x[(4u * i + f) * WIDTH + lane], half);
        }
    }
    let whole = half + bitcast<vec4<f32>>(neighbours(bitcast<vec4<u32>>(half), ids));
    return select(whole.xy, whole.zw, odd);
}

fn group_of(block: u32) -> u32 { return block / params.group_blocks; }
