// tanh x: near 0 by a polynomial (fitted, off by 2^-23 of itself at most), for the quotient of exponentials has lost its digits there.
fn tanh_of(x: f32) -> f32 {
    let s = x * x;
    if s < 0.3164 {
        var p = fma(-0.00653151097, s, 0.0212671254);
        p = fma(p, s, -0.0539025031);
        p = fma(p, s, 0.133330792);
        p = fma(p, s, -0.333333313);
        return fma(x * s, p, x);
    }
    let e = exp_negative(-2.0 * abs(x));
    return sign(x) * (1.0 - e) / (1.0 + e);
}
