// The weight of a row and a column: w_scale·(code - w_zero) of its group. codes has `words` a row, w_scale and w_zero `groups` a row, of `group_size`
// columns each. A kernel that includes this binds all three, and has these numbers and `bits` among its params.
fn int_weight(row: u32, column: u32) -> f32 {
    let at = column * params.bits;
    let code = extractBits(codes[row * params.words + at / 32u], at % 32u, params.bits);
    let affine = row * params.groups + column / params.group_size;
    return w_scale[affine] * (f32(code) - w_zero[affine]);
}
