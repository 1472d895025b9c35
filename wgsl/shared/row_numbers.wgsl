// For row.wgsl: rows of numbers as they are. A kernel defines `number(token, i)`, the i-th of a row.
alias Fetched = vec4<f32>;
fn fetch(token: u32, quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    return vec4<f32>(number(token, within(i)), number(token, within(i + 1u)), number(token, within(i + 2u)), number(token, within(i + 3u)));
}
fn numbers(v: vec4<f32>, quad: u32) -> vec4<f32> { return cut(v, quad); }
