// Of numbers w and what they were quantized to, q: Σ (w - q)², the bits of max|w - q| (which order as the numbers do, with NaN above all), Σ w·q, Σ w²,
// Σ q², and how many q are 0.
struct Acc { errors: f32, largest: u32, products: f32, squares_w: f32, squares_q: f32, zeros: u32 }
fn identity() -> Acc { return Acc(0.0, 0u, 0.0, 0.0, 0.0, 0u); }
fn combine(a: Acc, b: Acc) -> Acc {
    return Acc(
        a.errors + b.errors,
        max(a.largest, b.largest),
        a.products + b.products,
        a.squares_w + b.squares_w,
        a.squares_q + b.squares_q,
        a.zeros + b.zeros,
    );
}

// Mean squared error, largest error, cosine similarity (0 where one side is all zeros) and share of zeros; or the sums for another pass. All as bits.
fn store(at: u32, acc: Acc) {
    if params.last == 0u {
        y[6u * at] = bitcast<u32>(acc.errors);
        y[6u * at + 1u] = acc.largest;
        y[6u * at + 2u] = bitcast<u32>(acc.products);
        y[6u * at + 3u] = bitcast<u32>(acc.squares_w);
        y[6u * at + 4u] = bitcast<u32>(acc.squares_q);
        y[6u * at + 5u] = acc.zeros;
        return;
    }
    let norms = sqrt(acc.squares_w) * sqrt(acc.squares_q);
    var cosine = 0.0;
    // By its bits: a compiler may ask of `norms != 0.0` whether both are ordered, and NaN is not 0.
    if bitcast<u32>(norms) != 0u { cosine = acc.products / norms; }
    y[0] = bitcast<u32>(exact_quotient(acc.errors, params.divisor));
    y[1] = acc.largest;
    y[2] = bitcast<u32>(cosine);
    y[3] = bitcast<u32>(exact_quotient(f32(acc.zeros), params.divisor));
}
