// For shared/rms_row: the gains of a quad, with shared/row_whole.
alias Gain = vec4<f32>;
fn gain_quad(quad: u32) -> vec4<f32> { return gain[within(quad)]; }
