// The normal distribution: its density, and the share of it below x. That is q = ½·erfc(z) with z = |x|/√2 for x < 0, else 1 - q;
// e^(z²)·erfc(z)·½ is t times a polynomial in t = 2 / (2 + z) (fitted for z below 10.5, off by 3·2^-24 of itself at most).
fn normal_density(x: f32) -> f32 { return 0.398942280 * exp_negative(-0.5 * x * x); }

fn normal_below(x: f32) -> f32 {
    let t = 1.0 / fma(abs(x), 0.353553391, 1.0);
    var p = fma(-0.0585486367, t, 0.282312334);
    p = fma(p, t, -0.483111411);
    p = fma(p, t, 0.274094313);
    p = fma(p, t, -0.0243820865);
    p = fma(p, t, 0.201945096);
    p = fma(p, t, 0.243240625);
    p = fma(p, t, 0.282362938);
    p = fma(p, t, 0.282086790);
    let q = 0.5 * t * p * exp_negative(-0.5 * x * x);
    return select(1.0 - q, q, x < 0.0);
}
