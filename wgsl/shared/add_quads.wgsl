// Quads of sums, for shared/lanes.
alias Acc = vec4<f32>;
fn combine(a: Acc, b: Acc) -> Acc { return a + b; }
