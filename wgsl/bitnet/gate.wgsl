// The gate of a feed-forward block; the activation function is the `forward` of a part before.
fn combine(gate: f32, up: f32) -> f32 { return forward(gate) * up; }
