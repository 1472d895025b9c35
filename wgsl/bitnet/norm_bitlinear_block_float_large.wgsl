// norm_bitlinear_block_float.wgsl by packed products of integers for large matrices, with the same bits. A workgroup makes `tile` rows of one token, `span` of
// them at a time, and has four times as many threads, which share what is prepared: a chunk of the row as planes of bytes. Four rows and 1024 columns of
// the chunk are a piece of work: teams of sixteen threads share the pieces of a span, and a thread has one quad of words of each row of a piece. What becomes of a
// product, and which row of the matrix is the i-th, is for a part before to say (rows_stored.wgsl, rows_gated.wgsl).
struct Params { rows: u32, features: u32, words: u32, tile: u32, span: u32, blocks: u32, groups: u32, group_blocks: u32, normalise: u32, eps: f32, add: u32 }
var<immediate> params: Params;

// Threads of a team; blocks of a piece's columns.
const WIDTH: u32 = 16u;
const STEP: u32 = WIDTH / 2u;
const TEAMS: u32 = THREADS / WIDTH;
// Quads of words of a chunk of BLOCKS blocks.
const QUADS: u32 = 2u * BLOCKS;
// From one row's blocks to the next one's.
const PITCH: u32 = BLOCKS + 1u;

// A chunk's numbers in two planes of bytes, sixteen to a vector. The four vectors that meet a quad of words are a plane's quads apart, so that
// neighboring lanes read neighboring vectors.
var<workgroup> x: array<vec4<u32>, 8u * QUADS>;
// The unit of a block, and of how many units it consists.
var<workgroup> units: array<vec2<f32>, BLOCKS>;
// What blocks give, by row of a span.
var<workgroup> of_blocks: array<f32, ROWS * PITCH>;
// For rows_gated.wgsl.
var<workgroup> sums: array<u32, THREADS>;

// Sixteen columns of a chunk, vector number `vector` of it, which a thread prepares, and what they are multiplied with where there is a norm.
struct Own { vector: u32, numbers: array<vec4<f32>, 4>, gains: array<vec4<f32>, 4> }

// Of the chunk that begins at block `first`. Loaded outside of branches, since a compiler may wait for each load within one.
fn load_own(token: u32, first: u32, ids: Ids) -> Own {
    var own = Own();
    own.vector = ids.local;
    for (var q = 0u; q < 4u; q += 1u) {
        let quad = 32u * first + 4u * own.vector + q;
        own.numbers[q] = select(vec4<f32>(), source_quad(token, quad), own.vector < 4u * QUADS);
        own.gains[q] = gain_quad(quad);
    }
    return own;
}

// 1 / sqrt(mean(source²) + eps) of the row, of whose first chunk a thread has its own numbers.
fn row_inverse(token: u32, first: Own, ids: Ids) -> f32 {
    let quads = params.features / 4u;
    // The first quad of the chunks after it.
    let beyond = 16u * QUADS + ids.local;
    var v = first.numbers;
    var largest = 0u;
    for (var q = 0u; q < 4u; q += 1u) { largest = max(largest, magnitude(v[q])); }
    for (var quad = beyond; quad < quads; quad += THREADS) { largest = max(largest, magnitude(source_quad(token, quad))); }
    largest = cell_max(0u, largest, ids);
    let scale = square_scale(row_exponent(largest));
    var squares = vec2<u32>();
    for (var q = 0u; q < 4u; q += 1u) { squares += quad_limbs(v[q] * scale); }
    for (var quad = beyond; quad < quads; quad += THREADS) { squares += quad_limbs(source_quad(token, quad) * scale); }
    return inverse_rms(largest, cell_sum2(1u, squares, ids), params.features, params.eps);
}

// The largest, and the sum, of what eight neighbors have, who have a block.
fn block_max(v: u32, ids: Ids) -> u32 {
    var largest = max(v, team_exchange(v, 1u, ids));
    largest = max(largest, team_exchange(largest, 2u, ids));
    return max(largest, team_exchange(largest, 4u, ids));
}

fn block_sum(v: f32, ids: Ids) -> f32 {
    var sum = v + bitcast<f32>(team_exchange(bitcast<u32>(v), 1u, ids));
    sum += bitcast<f32>(team_exchange(bitcast<u32>(sum), 2u, ids));
    return sum + bitcast<f32>(team_exchange(bitcast<u32>(sum), 4u, ids));
}

// Leaves a thread's columns in workgroup memory. All threads must call this together.
fn prepare(own: Own, inverse: f32, ids: Ids) {
    var v = own.numbers;
    var gains = own.gains;
    var largest = 0u;
    for (var q = 0u; q < 4u; q += 1u) {
        if params.normalise != 0u { v[q] = apart(v[q] * inverse, params.features) * gains[q]; }
        largest = max(largest, magnitude(v[q]));
    }
    largest = block_max(largest, ids);
    let to_units = inverse_unit(largest);
    var units_sum = 0u;
    var sum = 0.0;
    var planes = array<vec2<u32>, 4>();
    for (var q = 0u; q < 4u; q += 1u) {
        v[q] *= to_units;
        sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
        let whole = whole_numbers(v[q]);
        units_sum += (whole.x + whole.y) + (whole.z + whole.w);
        planes[q] = byte_planes(whole);
    }
    // A float holds the sum of whole numbers. What is not finite stays so.
    let finite = (bitcast<u32>(sum) & 0x7fffffffu) < 0x7f800000u;
    sum = block_sum(bitcast<f32>(select(bitcast<u32>(sum), bitcast<u32>(f32(bitcast<i32>(units_sum))), finite)), ids);
    if own.vector >= 4u * QUADS { return; }
    let at = own.vector % 4u * QUADS + own.vector / 4u;
    x[at] = vec4<u32>(planes[0].x, planes[1].x, planes[2].x, planes[3].x);
    x[at + 4u * QUADS] = vec4<u32>(planes[0].y, planes[1].y, planes[2].y, planes[3].y);
    if own.vector % 8u == 0u { units[own.vector / 8u] = vec2<f32>(unit_for(largest), sum); }
}

// The sums of a lane's block in the two rows, of four, that are its own: the first two, or the last two of an odd lane. `quad` is of the chunk.
fn of_block(rows: Rows, quad: u32, odd: bool, ids: Ids) -> vec2<f32> {
    var sums = Sums();
    let unit = units[quad / 2u];
    for (var i = 0u; i < 4u; i += 1u) {
        let at = i * QUADS + quad;
        sums = add_words(sums, rows, i, x[at], x[at + 4u * QUADS]);
    }
    let half = joined(sums);
    let whole = half + bitcast<vec4<i32>>(neighbours(bitcast<vec4<u32>>(half), ids));
    return (vec2<f32>(select(whole.xy, whole.zw, odd)) - vec2<f32>(unit.y)) * unit.x;
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn norm_bitlinear_block_float_large(group: Group, ids: Ids) {
    let token = group.id.y;
    let tile = group.id.x * params.tile;
    let lane = ids.local % WIDTH;
    let odd = (lane & 1u) != 0u;
    // Of a team, the four rows and the columns of its first piece, and how far they are from those of the next one.
    let fours = params.span / 4u;
    let own_four = ids.local / WIDTH % fours;
    let own_step = ids.local / WIDTH / fours;
    var next = load_turn(tile + 4u * own_four, STEP * own_step, lane);
    var columns = load_own(token, 0u, ids);
    // What thread i adds its row's product to is loaded now, so that it is there when the product is.
    let output = tile + ids.local;
    let writes = ids.local < params.tile && output < params.rows;
    let base = former(token, output);
    clear_cells(ids);
    var inverse = 1.0;
    if params.normalise != 0u { inverse = row_inverse(token, columns, ids); }

    var total = 0.0;
    for (var first = 0u; first < params.blocks; first += BLOCKS) {
        if first > 0u { columns = load_own(token, first, ids); }
        prepare(columns, inverse, ids);
        workgroupBarrier();
        let steps = (min(BLOCKS, params.blocks - first) + STEP - 1u) / STEP;
        let turns = (fours * steps + TEAMS - 1u) / TEAMS;
        for (var done = 0u; done < params.tile; done += params.span) {
            var four = own_four;
            var step = own_step;
            for (var turn = 0u; turn < turns; turn += 1u) {
                let now = next;
                let at = (4u * four + select(0u, 2u, odd)) * PITCH + STEP * step + lane / 2u;
                let quad = min(WIDTH * step + lane, QUADS - 1u);
                let there = step < steps;
                // The weights of the next piece are loaded while these are multiplied.
                four += TEAMS % fours;
                step += TEAMS / fours + select(0u, 1u, four >= fours);
                four -= select(0u, fours, four >= fours);
                var next_done = done;
                var next_first = first;
                var next_four = four;
                var next_step = step;
                if turn + 1u == turns {
                    let ends = done + params.span >= params.tile;
                    next_done = select(done + params.span, 0u, ends);
                    next_first = select(first, first + BLOCKS, ends);
                    next_four = own_four;
                    next_step = own_step;
                }
                next = load_turn(tile + next_done + 4u * next_four, next_first + STEP * next_step, lane);
                // By way of workgroup memory, so that a product and the sum that it goes to are never fused.
                let products = of_block(now.rows, quad, odd, ids) * now.scale;
                if there {
                    of_blocks[at] = products.x;
                    of_blocks[at + PITCH] = products.y;
                }
            }
            workgroupBarrier();
            let row = ids.local - done;
            if ids.local >= done && row < params.span {
                for (var s = 0u; s < steps; s += 1u) {
                    // Written out, so that loads do not wait for sums; beyond the last block there is nothing to add.
                    for (var i = 0u; i < STEP; i += 1u) {
                        total += select(0.0, of_blocks[row * PITCH + STEP * s + i], first + STEP * s + i < params.blocks);
                    }
                }
            }
            workgroupBarrier();
        }
    }
    emit(token, output, writes, total, base, ids);
}
