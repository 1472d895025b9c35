// 1 / (1 + e^-x), by an exponential that cannot overflow.
fn sigmoid(x: f32) -> f32 {
    let e = exp_negative(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
