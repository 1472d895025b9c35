// Gates and what goes through them, number by number: for bitnet/row_gates, with shared/row_any.
alias Source = f32;
fn source_quad(at: u32, quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    return vec4<f32>(source[at + within(i)], source[at + within(i + 1u)], source[at + within(i + 2u)], source[at + within(i + 3u)]);
}
