// For matrix_of_expert.wgsl: activations of eight bits, code / x_scale. Without groups (`scaled_last`), sums of codes are exact, and are scaled last, as
// bitlinear_gemv.wgsl does.
@group(0) @binding(5) var<storage, read> x_scale: array<f32>;

fn block_scale(scale: vec4<f32>) -> vec4<f32> { return select(scale, vec4<f32>(1.0), params.scaled_last != 0u); }

fn stored(total: f32, token: u32, row: u32) -> f32 {
    var product = total;
    if params.scaled_last != 0u { product = total * w_scale[first_row(token) + row]; }
    return nan_unless(chosen[token] < params.experts, exact_quotient(product, x_scale[input_row(token)]));
}
