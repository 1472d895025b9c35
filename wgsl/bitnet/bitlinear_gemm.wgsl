// y[t, r] = (Σ_k xq[t, k]·Wq[r, k]) · w_scale[r] / x_scale[t], added to y if `add` is not 0; for many tokens t. codes is [rows, words] words of
// sixteen codes, x [tokens, PLANES, words] vectors of four words, y [tokens, rows]. A workgroup of 16 × 16 threads computes 64 rows × TILE_Y tokens
// (16, 32 or 64), each thread 4 rows × TILE_Y / 16 tokens, APART from one another. STEP words of every row and token are in workgroup memory at a time, as
// tile_*.wgsl decodes them.
// A part before brings `Params`, and what is done to a product before it is stored (product_plain.wgsl, product_finish.wgsl).
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> codes: array<u32>;
@group(0) @binding(1) var<storage, read> w_scale: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scale: array<f32>;
@group(0) @binding(4) var<storage, read> x_sum: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

// [plane][word of the step][row or token]: neighboring threads read neighboring rows.
var<workgroup> w_tile: array<vec4<u32>, PLANES * STEP * TILE_X>;
var<workgroup> x_tile: array<vec4<u32>, PLANES * STEP * TILE_Y>;

// A thread's rows and tokens are so far apart.
const APART: u32 = 16u;

// Adds the products of one token's activations `a` with four rows.
fn dot_rows(w0: vec4<u32>, w1: vec4<u32>, w2: vec4<u32>, w3: vec4<u32>, a: vec4<u32>, acc: vec4<Acc>) -> vec4<Acc> {
    return vec4<Acc>(dot_tile(w0, a, acc.x), dot_tile(w1, a, acc.y), dot_tile(w2, a, acc.z), dot_tile(w3, a, acc.w));
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn bitlinear_gemm(group: Group, ids: Ids) {
    let row0 = group.id.x * TILE_X;
    let token0 = group.id.y * TILE_Y;
    let tx = ids.local % 16u;
    let ty = ids.local / 16u;
    // A variable for each token, since compilers may put an array into memory instead of registers.
    var acc0 = vec4<Acc>();
    var acc1 = vec4<Acc>();
    var acc2 = vec4<Acc>();
    var acc3 = vec4<Acc>();

    for (var first = 0u; first < params.words; first += STEP) {
        // Rows and tokens that do not exist are read as the last one, and not written.
        for (var i = ids.local; i < STEP * TILE_X; i += THREADS) {
            let row = min(row0 + i / STEP, params.rows - 1u);
            let word = codes[row * params.words + first + i % STEP];
            for (var p = 0u; p < PLANES; p += 1u) { w_tile[(p * STEP + i % STEP) * TILE_X + i / STEP] = decode(word, p); }
        }
        for (var i = ids.local; i < STEP * TILE_Y; i += THREADS) {
            let token = min(token0 + i / STEP, params.tokens - 1u);
            for (var p = 0u; p < PLANES; p += 1u) {
                x_tile[(p * STEP + i % STEP) * TILE_Y + i / STEP] = x[(token * PLANES + p) * params.words + first + i % STEP];
            }
        }
        workgroupBarrier();
        for (var s = 0u; s < PLANES * STEP; s += 1u) {
            let w0 = w_tile[s * TILE_X + tx];
            let w1 = w_tile[s * TILE_X + tx + 16u];
            let w2 = w_tile[s * TILE_X + tx + 32u];
            let w3 = w_tile[s * TILE_X + tx + 48u];
            acc0 = dot_rows(w0, w1, w2, w3, x_tile[s * TILE_Y + ty], acc0);
            if TILE_Y > 16u { acc1 = dot_rows(w0, w1, w2, w3, x_tile[s * TILE_Y + ty + 16u], acc1); }
            if TILE_Y > 32u {
                acc2 = dot_rows(w0, w1, w2, w3, x_tile[s * TILE_Y + ty + 32u], acc2);
                acc3 = dot_rows(w0, w1, w2, w3, x_tile[s * TILE_Y + ty + 48u], acc3);
            }
        }
        workgroupBarrier();
    }

    write_rows(token0 + ty, row0 + tx, acc0);
    if TILE_Y > 16u { write_rows(token0 + ty + 16u, row0 + tx, acc1); }
    if TILE_Y > 32u {
        write_rows(token0 + ty + 32u, row0 + tx, acc2);
        write_rows(token0 + ty + 48u, row0 + tx, acc3);
    }
}
