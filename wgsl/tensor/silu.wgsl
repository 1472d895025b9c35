// x·σ(x), and dy·σ(x)·(1 + x·(1 - σ(x)))
fn forward(x: f32) -> f32 { return x * sigmoid(x); }

fn backward(x: f32, dy: f32) -> f32 {
    let s = sigmoid(x);
    return dy * (s * fma(x, 1.0 - s, 1.0));
}
