// ln(1 + e^x) = max(x, 0) + ln(1 + e), e = e^-|x|, and dy·σ(x). ln(1 + e) = 2·artanh(s), s = e / (2 + e), by a polynomial in s² (fitted, off by
// 2^-23 of itself at most), for `log` has lost the digits of a small e.
fn forward(x: f32) -> f32 {
    let e = exp_negative(-abs(x));
    let s = e / (2.0 + e);
    let u = s * s;
    var p = fma(0.232390508, u, 0.217033148);
    p = fma(p, u, 0.285925835);
    p = fma(p, u, 0.399997026);
    p = fma(p, u, 0.666666687);
    return max(x, 0.0) + fma(s * u, p, 2.0 * s);
}

fn backward(x: f32, dy: f32) -> f32 { return dy * sigmoid(x); }
