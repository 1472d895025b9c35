// What is quantized, in whole quads: for shared/row, with shared/row_whole.
alias Source = vec4<X>;
alias Fetched = vec4<f32>;
fn fetch(token: u32, quad: u32) -> vec4<f32> { return vec4<f32>(source[token * (params.features / 4u) + within(quad)]); }
fn numbers(v: vec4<f32>, quad: u32) -> vec4<f32> { return cut(v, quad); }
