// For shared/rms_row: the gains of a quad, with shared/row_any.
alias Gain = f32;
fn gain_quad(quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    return vec4<f32>(gain[within(i)], gain[within(i + 1u)], gain[within(i + 2u)], gain[within(i + 3u)]);
}
