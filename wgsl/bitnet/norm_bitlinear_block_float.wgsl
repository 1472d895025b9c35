// BitLinear of a row that is normalized and rounded here, for few tokens, in one dispatch: y[r] = Σ over blocks b of (Σ x[k]·Wq[r, k] over the columns k of b) ·
// w_scale[r, group of b], where x is norm(source) in block floating point, norm(v) = v / sqrt(mean(v²) + eps) · gain, or v where `normalise` is 0. The bits of
// rms_norm_block_float.wgsl, or quantize_block_float.wgsl, and then bitlinear_block_float_gemv.wgsl. Every workgroup prepares the row of its token for itself while its
// first weights are on their way, in chunks of 16 columns a thread, which have room in workgroup memory. Blocks are of eight words, and rows are whole
// quads of words. A workgroup makes `tile` rows of one token, sixteen at a time. A team of WIDTH threads makes four of these; each thread has one quad of words
// of each of the four in a chunk. In what form a chunk is kept, and how it is multiplied, is for a part before to say (chunk_bytes.wgsl, chunk_floats.wgsl), and
// so is what becomes of a product, and which row of the matrix is the i-th (rows_stored.wgsl, rows_gated.wgsl).
struct Params { rows: u32, features: u32, words: u32, tile: u32, blocks: u32, groups: u32, group_blocks: u32, normalise: u32, eps: f32, add: u32 }
var<immediate> params: Params;

// Quads of words of a chunk, and threads of a team.
const WIDTH: u32 = THREADS / 4u;
// Blocks of a chunk.
const BLOCKS: u32 = WIDTH / 2u;
// From one row's blocks to the next one's.
const PITCH: u32 = BLOCKS + 1u;

// What blocks give, by row.
var<workgroup> of_blocks: array<f32, ROWS * PITCH>;
// For rows_gated.wgsl.
var<workgroup> sums: array<u32, THREADS>;

// 1 / sqrt(mean(source²) + eps) of the row.
fn row_inverse(token: u32, ids: Ids) -> f32 {
    let quads = params.features / 4u;
    var largest = 0u;
    for (var quad = ids.local; quad < quads; quad += THREADS) { largest = max(largest, magnitude(source_quad(token, quad))); }
    largest = cell_max(0u, largest, ids);
    let scale = square_scale(row_exponent(largest));
    var squares = vec2<u32>();
    for (var quad = ids.local; quad < quads; quad += THREADS) { squares += quad_limbs(source_quad(token, quad) * scale); }
    return inverse_rms(largest, cell_sum2(1u, squares, ids), params.features, params.eps);
}

// Leaves a chunk in workgroup memory: each thread its four quads, from quad number `first` of the row on; eight neighbors have a block.
fn prepare(token: u32, first: u32, inverse: f32, ids: Ids) {
    var v = array<vec4<f32>, 4>();
    var gains = array<vec4<f32>, 4>();
    for (var q = 0u; q < 4u; q += 1u) {
        v[q] = source_quad(token, first + q);
        if GAINS_AHEAD { gains[q] = gain_quad(first + q); }
    }
    var largest = 0u;
    for (var q = 0u; q < 4u; q += 1u) {
        if params.normalise != 0u {
            if !GAINS_AHEAD { gains[q] = gain_quad(first + q); }
            v[q] = apart(v[q] * inverse, params.features) * gains[q];
        }
        largest = max(largest, magnitude(v[q]));
    }
    largest = max(largest, team_exchange(largest, 1u, ids));
    largest = max(largest, team_exchange(largest, 2u, ids));
    largest = max(largest, team_exchange(largest, 4u, ids));
    let to_units = inverse_unit(largest);
    for (var q = 0u; q < 4u; q += 1u) { v[q] = round(v[q] * to_units); }
    keep(v, unit_for(largest), ids);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn norm_bitlinear_block_float(group: Group, ids: Ids) {
    let token = group.id.y;
    let tile = group.id.x * params.tile;
    let lane = ids.local % WIDTH;
    // The first row of a team, of the tile.
    let own = 4u * (ids.local / WIDTH);
    var next = load_turn(tile + own, 0u, lane);
    // What thread i adds its row's product to is loaded now, so that it is there when the product is.
    let output = tile + ids.local;
    let writes = ids.local < params.tile && output < params.rows;
    let base = former(token, output);
    clear_cells(ids);
    var inverse = 1.0;
    if params.normalise != 0u { inverse = row_inverse(token, ids); }

    var total = 0.0;
    for (var first = 0u; first < params.blocks; first += BLOCKS) {
        prepare(token, 32u * first + 4u * ids.local, inverse, ids);
        workgroupBarrier();
        let unit = unit_of(lane);
        for (var turn = 0u; turn < params.tile; turn += 16u) {
            let now = next;
            // The weights of the next turn are loaded while these are multiplied.
            let ends = turn + 16u >= params.tile;
            next = load_turn(tile + own + select(turn + 16u, 0u, ends), select(first, first + BLOCKS, ends), lane);
            let odd = (lane & 1u) != 0u;
            let products = of_block(now.rows, lane, odd, unit, ids) * now.scale;
            // By way of workgroup memory, so that a product and the sum that it goes to are never fused.
            let at = (turn + own + select(0u, 2u, odd)) * PITCH + lane / 2u;
            of_blocks[at] = products.x;
            of_blocks[at + PITCH] = products.y;
        }
        workgroupBarrier();
        if ids.local < params.tile {
            let count = params.blocks - first;
            // Written out, so that loads do not wait for sums; beyond the last block there is nothing to add.
            for (var i = 0u; i < BLOCKS; i += 1u) { total += select(0.0, of_blocks[ids.local * PITCH + i], i < count); }
        }
    }
    emit(token, output, writes, total, base, ids);
}
