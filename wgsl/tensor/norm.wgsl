// sqrt(Σ x²)
fn load(v: f32) -> f32 { return v * v; }
fn finish(squares: f32) -> f32 { return sqrt(squares); }
