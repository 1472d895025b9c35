// tanh x, and dy·(1 - tanh² x) = dy·4e/(1 + e)² with e = e^-2|x|, which keeps its digits where tanh is nearly 1.
fn forward(x: f32) -> f32 { return tanh_of(x); }

fn backward(x: f32, dy: f32) -> f32 {
    let e = exp_negative(-2.0 * abs(x));
    return dy * (4.0 * e / (1.0 + e) / (1.0 + e));
}
