// A number's key, and the complement of its index: of equal keys, the lower index has the larger pair.
alias Acc = vec2<u32>;
fn identity() -> vec2<u32> { return vec2<u32>(0u); }
fn combine(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, a.x > b.x || (a.x == b.x && a.y >= b.y)); }

// The index, or the pair for another pass.
fn store(at: u32, acc: vec2<u32>) {
    if params.last != 0u { y[at] = ~acc.y; return; }
    y[2u * at] = acc.x;
    y[2u * at + 1u] = acc.y;
}
