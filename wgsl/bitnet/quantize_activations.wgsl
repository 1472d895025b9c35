// Absmax quantization of activations [tokens, features] per token, into one of the two layouts. The formula is in
// quantize_row.wgsl.
struct Params { tokens: u32, features: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> source: array<Source>;
@group(0) @binding(1) var<storage, read_write> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> x_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> x_sum: array<vec2<i32>>;

fn finished(v: vec4<f32>, quad: u32) -> vec4<f32> { return v; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn quantize_activations(group: Group, ids: Ids) {
    let token = row_of(group, ids);
    if token < params.tokens {
        clear_cells(ids);
        hold_row(token, ids);
        quantize_row(token, ids);
    }
}
