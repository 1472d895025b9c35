// y[t, r] = Σ over blocks b of (Σ x[t, k]·Wq[r, k] over the columns k of b)·w_scale[r, group of b], on top of y if `add` is not 0, for many tokens t, whose
// activations are in block floating point (block_float_store.wgsl), as floats in order. A block's sum is exact; it is scaled, which rounds, and these are added in
// order: bit-identical in every kernel and on every device. codes is [rows, words] words of sixteen codes, y [tokens, rows]. A workgroup of 16 × 16 threads
// makes 64 rows × 64 tokens, a thread 4 × 4 of them, APART from one another. 32 columns of every row and token are in workgroup memory at a time, and those
// that follow are loaded while these are multiplied.
struct Params { m: u32, n: u32, blocks: u32, words: u32, block_words: u32, groups: u32, group_blocks: u32, lanes: u32, add: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read> w_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<Y>;

const QUADS: u32 = 8u;
const APART: u32 = 16u;
var<workgroup> w_tile: array<vec4<f32>, QUADS * TILE_X>;
var<workgroup> x_tile: array<vec4<f32>, QUADS * TILE_Y>;

// Where a quad of a row or token is. Eight neighbors of one quad, and eight quads of one neighbor, meet no bank twice.
fn place(quad: u32, line: u32) -> u32 { return quad * TILE_X + (line ^ quad); }

// A product that no compiler fuses with a sum. There are no 2^31 tokens; but that is not known when this is compiled.
fn apart(product: vec4<f32>) -> vec4<f32> { return bitcast<vec4<f32>>(bitcast<vec4<u32>>(product) | vec4<u32>(params.m >> 31u)); }

// Stores what a thread has of a token: four rows, of which row0 is the first.
fn write_rows(token: u32, row0: u32, totals: vec4<f32>) {
    if token >= params.m { return; }
    for (var i = 0u; i < 4u; i += 1u) {
        let row = row0 + APART * i;
        if row >= params.n { return; }
        let output = token * params.n + row;
        if params.add != 0u { y[output] = Y(f32(y[output]) + totals[i]); } else { y[output] = Y(totals[i]); }
    }
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_block_float_gemm(group: Group, ids: Ids) {
    let row0 = group.id.x * TILE_X;
    let token0 = group.id.y * TILE_Y;
    let tx = ids.local % APART;
    let ty = ids.local / APART;
    // What a thread stages: half a word of a row, and a quad of two tokens. Rows and tokens that do not exist are read as the last one, and not written.
    let row = ids.local / 4u;
    let half = ids.local % 4u;
    let row_start = min(row0 + row, params.n - 1u) * params.words;
    let token = ids.local / QUADS;
    let quad = ids.local % QUADS;
    let row_words = params.blocks * params.block_words;
    let token_starts = min(vec2<u32>(token0 + token, token0 + token + TILE_Y / 2u), vec2<u32>(params.m - 1u)) * (4u * row_words) + quad;
    // The rows whose sums it has.
    let last = params.n - 1u;
    let rows = min(vec4<u32>(row0 + tx) + vec4<u32>(0u, APART, 2u * APART, 3u * APART), vec4<u32>(last)) * params.groups;
    // Beyond the end of a row codes are whatever they are: activations are zeros there.
    var next_codes = codes[row_start + min(half / 2u, params.words - 1u)];
    var next_x = array<vec4<f32>, 2>(x[token_starts.x], x[token_starts.y]);
    // A variable for each token, since compilers may put an array into memory instead of registers.
    var total0 = vec4<f32>();
    var total1 = vec4<f32>();
    var total2 = vec4<f32>();
    var total3 = vec4<f32>();
    for (var block = 0u; block < params.blocks; block += 1u) {
        var sum0 = vec4<f32>();
        var sum1 = vec4<f32>();
        var sum2 = vec4<f32>();
        var sum3 = vec4<f32>();
        for (var word = block * params.block_words; word < (block + 1u) * params.block_words; word += 2u) {
            let field = half % 2u * 2u;
            w_tile[place(2u * half, row)] = weights(next_codes, field);
            w_tile[place(2u * half + 1u, row)] = weights(next_codes, field + 1u);
            x_tile[place(quad, token)] = next_x[0];
            x_tile[place(quad, token + TILE_Y / 2u)] = next_x[1];
            workgroupBarrier();
            // After the last ones, these once more.
            let next = min(word + 2u, row_words - 2u);
            next_codes = codes[row_start + min(next + half / 2u, params.words - 1u)];
            next_x = array<vec4<f32>, 2>(x[token_starts.x + 4u * next], x[token_starts.y + 4u * next]);
            for (var q = 0u; q < QUADS; q += 1u) {
                let at = place(q, tx);
                let w = Block(w_tile[at], w_tile[at + APART], w_tile[at + 2u * APART], w_tile[at + 3u * APART]);
                let other = place(q, ty);
                sum0 = rows_dot(w, x_tile[other], sum0);
                sum1 = rows_dot(w, x_tile[other + APART], sum1);
                sum2 = rows_dot(w, x_tile[other + 2u * APART], sum2);
                sum3 = rows_dot(w, x_tile[other + 3u * APART], sum3);
            }
            workgroupBarrier();
        }
        let g = block / params.group_blocks;
        let scale = vec4<f32>(w_scale[rows.x + g], w_scale[rows.y + g], w_scale[rows.z + g], w_scale[rows.w + g]);
        total0 += apart(sum0 * scale);
        total1 += apart(sum1 * scale);
        total2 += apart(sum2 * scale);
        total3 += apart(sum3 * scale);
    }
    write_rows(token0 + ty, row0 + tx, total0);
    write_rows(token0 + ty + APART, row0 + tx, total1);
    write_rows(token0 + ty + 2u * APART, row0 + tx, total2);
    write_rows(token0 + ty + 3u * APART, row0 + tx, total3);
}
