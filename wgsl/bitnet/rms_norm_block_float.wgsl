// x / sqrt(mean(x²) + eps) · gain for rows `first` .. `first + tokens` of x [.., features], in block floating point: quantize_block.wgsl. One workgroup per row.
struct Params { tokens: u32, features: u32, first: u32, blocks: u32, quads: u32, order: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> gain: array<f32>;

fn number(token: u32, i: u32) -> f32 { return x[(params.first + token) * params.features + i]; }

fn round_and_store(token: u32, quad: u32, v: vec4<f32>, ids: Ids) {
    store_block_float(block_float_quad(v, token, quad, ids), quad < params.blocks * params.quads, ids);
}

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm_block_float(group: Group, ids: Ids) {
    let token = flat_group(group);
    if token >= params.tokens { return; }
    clear_cells(ids);
    hold_row(token, ids);
    normalize_row(token, ids);
    let row_quads = params.blocks * params.quads;
    for (var h = 0u; h < HELD; h += 1u) {
        if h * THREADS < row_quads { round_and_store(token, ids.local + h * THREADS, held[h], ids); }
    }
    for (var first = HELD * THREADS; first < row_quads; first += THREADS) {
        let quad = first + ids.local;
        round_and_store(token, quad, finished(fetched_numbers(token, quad), quad), ids);
    }
}
