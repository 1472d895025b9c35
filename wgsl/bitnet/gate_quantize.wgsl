// v = act(gate) · up per token, where a row of source [tokens, 2·features] is gate, then up; quantized as in quantize_row.wgsl.
struct Params { tokens: u32, features: u32, words: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> source: array<Source>;
@group(0) @binding(1) var<storage, read_write> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> x_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> x_sum: array<vec2<i32>>;

fn finished(v: vec4<f32>, quad: u32) -> vec4<f32> { return v; }

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn gate_quantize(group: Group, ids: Ids) {
    let token = row_of(group, ids);
    if token < params.tokens {
        clear_cells(ids);
        hold_row(token, ids);
        quantize_row(token, ids);
    }
}
