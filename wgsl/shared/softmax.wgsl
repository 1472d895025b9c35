// What a softmax needs of a row: (largest, Σ e^(x - largest)), in one pass ("online", Milakov and Gimelshein 2018, arXiv:1805.02867). Of two such
// pairs the one with the lower maximum is scaled down; a number x is the pair (x, 1). The first maximum is the lowest float, not -infinity, which
// less itself would be NaN.
const NOTHING: vec2<f32> = vec2<f32>(-3.4028234e38, 0.0);

fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let scale = exp_negative(-abs(a.x - b.x));
    if a.x >= b.x { return vec2<f32>(a.x, a.y + b.y * scale); }
    return vec2<f32>(b.x, a.y * scale + b.y);
}
