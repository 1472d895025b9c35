// x·σ(2u), u = √(2/π)·(x + 0.044715·x³), and dy·(σ(2u) + x·σ(2u)·σ(-2u)·2u')
fn inner(x: f32) -> f32 { return 2.0 * 0.797884561 * x * fma(0.044715 * x, x, 1.0); }

fn forward(x: f32) -> f32 { return x * sigmoid(inner(x)); }

fn backward(x: f32, dy: f32) -> f32 {
    let s = sigmoid(inner(x));
    return dy * fma(x, s * sigmoid(-inner(x)) * fma(0.214064620 * x, x, 1.59576912), s);
}
