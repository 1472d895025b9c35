// BitLinear of a row that is normalized and quantized here: y = quantized(norm(source)) · codesᵀ · w_scale, for few tokens, in one dispatch. Every
// workgroup prepares the row of its token for itself, in workgroup memory, while its first weights are on their way: that is arithmetic for which
// memory leaves room, and what it computes is bit-identical in every workgroup. Where `normalise` is not 0, norm(v) = v / sqrt(mean(v²) + eps) · gain,
// else v. Quantized is as in quantize_row.wgsl. codes is [rows, words] words of sixteen codes; source [tokens, features], features a multiple of
// four and at most 16·VECTORS. A workgroup takes `tile` rows of one token, as many as it has threads at most, a team ROWS rows at a time. What becomes of
// a product, and which row of the matrix is the i-th, is for the part before to say (rows_stored.wgsl, rows_gated.wgsl).
struct Params { rows: u32, features: u32, words: u32, tile: u32, normalise: u32, eps: f32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<Words>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gain: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Quads of the row that a thread takes.
const QUADS: u32 = (4u * VECTORS + THREADS - 1u) / THREADS;
// Quantized numbers, sixteen to a vector, and zeros for lanes beyond the row.
const PLANE: u32 = VECTORS + WORDS;
var<workgroup> x: array<vec4<u32>, PLANES * PLANE>;
// Bits of sums, then of products.
var<workgroup> sums: array<u32, THREADS>;

fn magnitude(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn normalise_row(v: ptr<function, array<vec4<f32>, QUADS>>, ids: Ids) {
    // Beyond the row, the last ones are multiplied by zeros.
    var gains = array<vec4<f32>, QUADS>();
    for (var q = 0u; q < QUADS; q += 1u) {
        gains[q] = gain[min(ids.local + q * THREADS, params.features / 4u - 1u)];
    }
    var largest = 0u;
    for (var q = 0u; q < QUADS; q += 1u) { largest = max(largest, magnitude((*v)[q])); }
    largest = cell_max(0u, largest, ids);
    let scale = square_scale(row_exponent(largest));
    var squares = vec2<u32>();
    for (var q = 0u; q < QUADS; q += 1u) { squares += quad_limbs((*v)[q] * scale); }
    let inverse = inverse_rms(largest, cell_sum2(1u, squares, ids), params.features, params.eps);
    for (var q = 0u; q < QUADS; q += 1u) { (*v)[q] = apart((*v)[q] * inverse, params.features) * gains[q]; }
}

// Four neighboring lanes have a word each of a vector, which the first of them gets whole: to write a component, Metal writes its vector.
fn gathered(word: u32, ids: Ids) -> vec4<u32> {
    let second = team_exchange(word, 1u, ids);
    return vec4<u32>(word, second, team_exchange(word, 2u, ids), team_exchange(second, 2u, ids));
}

// Leaves the row's codes in `x`, and gives their scale. Their sum, which is taken off every sum of products since codes of weights are value + 1, is in
// cell 4 after a barrier.
fn quantise_row(v: ptr<function, array<vec4<f32>, QUADS>>, ids: Ids) -> f32 {
    var largest = 0u;
    for (var q = 0u; q < QUADS; q += 1u) { largest = max(largest, magnitude((*v)[q])); }
    largest = cell_max(3u, largest, ids);
    let finite = largest < 0x7f800000u;
    let scale = absmax_scale(bitcast<f32>(select(0u, largest, finite)), 127.0);
    var total = 0;
    for (var q = 0u; q < QUADS; q += 1u) {
        // Beyond the row, numbers and codes are 0.
        let codes = codes_of(select(vec4<f32>(), (*v)[q], finite), scale);
        store(ids.local + q * THREADS, codes, ids);
        total += (codes.x + codes.y) + (codes.z + codes.w);
    }
    if ids.local < WORDS {
        for (var p = 0u; p < PLANES; p += 1u) { x[p * PLANE + params.words + ids.local] = vec4<u32>(); }
    }
    cell_add(4u, bitcast<u32>(total), ids);
    workgroupBarrier();
    return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(scale), finite));
}

// Groups of words i, i + lanes, .. of ROWS rows from `first` on: TURNS of them.
fn load_turns(first: u32, i: u32, ids: Ids, w: ptr<function, array<array<Words, ROWS>, TURNS>>) {
    let groups = params.words / WORDS;
    let lane = team_lane(ids);
    let lanes = team_lanes(ids);
    // Rows that do not exist are read as the last one, and not written.
    var start = array<u32, ROWS>();
    for (var r = 0u; r < ROWS; r += 1u) { start[r] = matrix_row(min(first + r, params.rows - 1u)) * groups; }
    for (var u = 0u; u < TURNS; u += 1u) {
        // What is read twice is multiplied by zeros.
        let at = min(i + u * lanes + lane, groups - 1u);
        for (var r = 0u; r < ROWS; r += 1u) { (*w)[u][r] = codes[start[r] + at]; }
    }
}

fn multiply_turns(i: u32, ids: Ids, w: ptr<function, array<array<Words, ROWS>, TURNS>>, acc: ptr<function, array<Acc, ROWS>>) {
    let groups = params.words / WORDS;
    let lanes = team_lanes(ids);
    for (var u = 0u; u < TURNS; u += 1u) {
        // Beyond the row there are zeros.
        let at = min(i + u * lanes + team_lane(ids), groups) * WORDS;
        for (var c = 0u; c < WORDS; c += 1u) {
            var a = array<vec4<u32>, PLANES>();
            for (var p = 0u; p < PLANES; p += 1u) { a[p] = x[p * PLANE + at + c]; }
            for (var r = 0u; r < ROWS; r += 1u) { (*acc)[r] = dot_word(word((*w)[u][r], c), a, (*acc)[r]); }
        }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn norm_bitlinear(group: Group, ids: Ids) {
    let token = group.id.y;
    let tile = group.id.x * params.tile;
    let stride = TURNS * team_lanes(ids);
    // A single one is known when this is compiled, so that no loop is left.
    let chunks = select((params.words / WORDS + stride - 1u) / stride, 1u, stride * WORDS >= VECTORS);
    var turn = team_first(ids) * ROWS;
    var next = array<array<Words, ROWS>, TURNS>();
    load_turns(tile + turn + team_offset(ids) * ROWS, 0u, ids, &next);

    // Thread i scales row i of the tile. What it needs for that is loaded now, so that it is there when the sums are.
    let output = tile + ids.local;
    let writes = ids.local < params.tile && output < params.rows;
    let beta = w_scale[matrix_row(min(output, params.rows - 1u))];
    let base = former(token, output);

    // Loads outside of branches, since a compiler may wait for each within one.
    let quads = params.features / 4u;
    var v = array<vec4<f32>, QUADS>();
    for (var q = 0u; q < QUADS; q += 1u) { v[q] = source[token * quads + min(ids.local + q * THREADS, quads - 1u)]; }
    for (var q = 0u; q < QUADS; q += 1u) { v[q] = select(vec4<f32>(), v[q], ids.local + q * THREADS < quads); }
    clear_cells(ids);
    if params.normalise != 0u { normalise_row(&v, ids); }
    let scale = quantise_row(&v, ids);

    for (; turn < params.tile; turn += team_count(ids) * ROWS) {
        let first = turn + team_offset(ids) * ROWS;
        var acc = array<Acc, ROWS>();
        for (var chunk = 0u; chunk < chunks; chunk += 1u) {
            // The weights of the next turn are loaded while these are multiplied.
            var w = next;
            let ends = chunk + 1u == chunks;
            let next_turn = select(turn, turn + team_count(ids) * ROWS, ends);
            if next_turn < params.tile {
                load_turns(tile + next_turn + team_offset(ids) * ROWS, select((chunk + 1u) * stride, 0u, ends), ids, &next);
            }
            multiply_turns(chunk * stride, ids, &w, &acc);
        }
        let sum = row_sum(&acc, ids);
        if first < params.tile && team_lane(ids) < ROWS { sums[first + team_lane(ids)] = bitcast<u32>(sum); }
    }
    workgroupBarrier();
    let sum = finish(bitcast<Acc>(sums[ids.local]), vec2<i32>(bitcast<i32>(cell_value(4u)), 0));
    emit(token, output, writes, exact_quotient(sum * beta, scale), base, ids);
}
