// For shared/lanes: the largest number and the smallest with its sign changed, 0 being among them, as keys of shared/order. NaN is above all in both.
alias Acc = vec2<u32>;
fn identity() -> vec2<u32> { return vec2<u32>(to_key(0.0)); }
fn load(v: f32) -> vec2<u32> { return vec2<u32>(to_key(v), to_key(-v)); }
fn combine(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return vec2<u32>(max(a.x, b.x), max(a.y, b.y)); }
