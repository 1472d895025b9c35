// v turned by an angle (cos, sin), where `partner` is the other number of its pair, with its sign. Rounded in one way, so that what is turned is the same
// bits in every kernel.
fn turned(v: f32, partner: f32, angle: vec2<f32>) -> f32 { return fma(v, angle.x, partner * angle.y); }
