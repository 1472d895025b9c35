// Gates and what goes through them, in whole quads: for bitnet/row_gates, with shared/row_whole.
alias Source = vec4<f32>;
fn source_quad(at: u32, quad: u32) -> vec4<f32> { return source[at / 4u + within(quad)]; }
