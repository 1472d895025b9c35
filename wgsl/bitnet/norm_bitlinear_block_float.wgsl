// BitLinear of a row that is normalized and rounded here, for few tokens, in one dispatch: y[r] = Σ over blocks b of (Σ x[k]·Wq[r, k] over the columns k of b) ·
// w_scale[r, group of b], where x is norm(source) in block floating point, norm(v) = v / sqrt(mean(v²) + eps) · gain, or v where `normalise` is 0. The bits of
// rms_norm_block_float.wgsl, or quantize_block_float.wgsl, and then bitlinear_block_float_gemv.wgsl. Every workgroup prepares the row of its token for itself while its
// first weights are on their way, in chunks of 16 columns a thread, which have room in workgroup memory. Blocks are of eight words, and rows are whole
// quads of words. A workgroup makes `tile` rows of one token, sixteen at a time. A team of WIDTH threads makes four of these; each thread has one quad of words
// of each of the four in a chunk. In what form a chunk is kept, and how it is multiplied, is for a part before to say (chunk_bytes.wgsl, chunk_floats.wgsl), and
// so is what becomes of a product, and which row of the matrix is the i-th (rows_stored.wgsl, rows_gated.wgsl).
struct Params { rows: u32, features: u32, words: u32, tile: u32, blocks: u32, groups: u32, group_blocks: u32, normalise: u32, eps: f32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gain: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

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

fn magnitude(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// Beyond the row, numbers are 0.
fn source_quad(token: u32, quad: u32) -> vec4<f32> {
    let quads = params.features / 4u;
    return select(vec4<f32>(), source[token * quads + min(quad, quads - 1u)], quad < quads);
}

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
    let last = params.features / 4u - 1u;
    var v = array<vec4<f32>, 4>();
    var largest = 0u;
    for (var q = 0u; q < 4u; q += 1u) {
        v[q] = source_quad(token, first + q);
        if params.normalise != 0u { v[q] = apart(v[q] * inverse, params.features) * gain[min(first + q, last)]; }
        largest = max(largest, magnitude(v[q]));
    }
    largest = max(largest, team_exchange(largest, 1u, ids));
    largest = max(largest, team_exchange(largest, 2u, ids));
    largest = max(largest, team_exchange(largest, 4u, ids));
    let to_units = inverse_unit(largest);
    for (var q = 0u; q < 4u; q += 1u) { v[q] = round(v[q] * to_units); }
    keep(v, unit_for(largest), ids);
}

// What the neighboring lane has, whose quad of words is the other half of a block.
fn neighbours(bits: vec4<u32>, ids: Ids) -> vec4<u32> {
    return vec4<u32>(
        team_exchange(bits.x, 1u, ids), team_exchange(bits.y, 1u, ids), team_exchange(bits.z, 1u, ids), team_exchange(bits.w, 1u, ids));
}

// A lane's weights of a turn: a quad of words of four rows, and the scales of its block in the two of these rows whose sums it scales.
struct Turn { rows: Rows, scale: vec2<f32> }

// Of four rows from number `first` on, and of the chunk that begins at block `block`. Rows that do not exist are read as the last one, and not written.
fn load_turn(first: u32, block: u32, lane: u32) -> Turn {
    let last = params.rows - 1u;
    let rows = vec4<u32>(
        matrix_row(min(first, last)), matrix_row(min(first + 1u, last)), matrix_row(min(first + 2u, last)), matrix_row(min(first + 3u, last)));
    let scaled = select(rows.xy, rows.zw, (lane & 1u) != 0u) * params.groups;
    let of_group = min(block + lane / 2u, params.blocks - 1u) / params.group_blocks;
    return Turn(
        load_rows(rows * (params.words / 4u), 2u * block + lane), vec2<f32>(w_scale[scaled.x + of_group], w_scale[scaled.y + of_group]));
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
