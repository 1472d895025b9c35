// σ(x), and dy·σ(x)·(1 - σ(x)); 1 - σ(x) is σ(-x), which keeps its digits.
fn forward(x: f32) -> f32 { return sigmoid(x); }

fn backward(x: f32, dy: f32) -> f32 { return dy * (sigmoid(x) * sigmoid(-x)); }
