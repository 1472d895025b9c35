// The gradient of an op with one input, for elementwise_2: a is the op's input, b the gradient of its output.
fn combine(x: f32, dy: f32) -> f32 { return backward(x, dy); }
