// a^b = 2^(b·log₂ |a|), negative for a < 0 and odd b.
fn power(a: f32, b: f32) -> f32 {
    if b == 0.0 || a == 1.0 { return 1.0; }
    let size = exp2(b * log2(abs(a)));
    if a >= 0.0 { return size; }
    // A float of 2^24 or more is even; what is no integer gives NaN, as 0 / 0 does.
    if trunc(b) != b { return (b - b) / (a - a); }
    let odd = abs(b) < 16777216.0 && (i32(b) & 1) != 0;
    return select(size, -size, odd);
}
