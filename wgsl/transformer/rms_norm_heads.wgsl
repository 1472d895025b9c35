// Query and key heads v of qkv become v / sqrt(mean(v²) + eps) · gain, where they are. A row of qkv [tokens, ..] holds `heads` queries, then `kv_heads`
// keys, then as many values, all of `features` numbers. One workgroup per query or key head, which holds all of it.
struct Params { tokens: u32, heads: u32, kv_heads: u32, features: u32, eps: f32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> query_gain: array<f32>;
@group(0) @binding(1) var<storage, read> key_gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> qkv: array<f32>;

// `at` is where a head begins.
fn number(at: u32, i: u32) -> f32 { return qkv[at + i]; }

// Nothing is beyond what is held.
fn finished(v: vec4<f32>, quad: u32) -> vec4<f32> { return v; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn rms_norm_heads(group: Group, ids: Ids) {
    let index = flat_group(group);
    let heads = params.heads + params.kv_heads;
    let token = index / heads;
    if token >= params.tokens { return; }
    let head = index % heads;
    let at = (token * (heads + params.kv_heads) + head) * params.features;
    clear_cells(ids);
    hold_row(at, ids);
    let largest = cell_max(0u, magnitude(held[0]), ids);
    let sums = cell_sum2(1u, quad_limbs(held[0] * square_scale(row_exponent(largest))), ids);
    let inverse = inverse_rms(largest, sums, params.features, params.eps);
    let v = apart(held[0] * inverse, params.features);
    for (var j = 0u; j < 4u; j += 1u) {
        let i = 4u * ids.local + j;
        if i < params.features {
            var gain = query_gain[i];
            if head >= params.heads { gain = key_gain[i]; }
            qkv[at + i] = v[j] * gain;
        }
    }
}
