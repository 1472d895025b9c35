// The scale a = levels / max(largest, 1e-5) of numbers of which `largest` is the largest magnitude. PyTorch computes 127 / t as (1 / t)·127. For t from
// 2^126 on, 1 / t is subnormal, and GPUs may flush it; so t is shrunk before.
fn absmax_scale(largest: f32, levels: f32) -> f32 {
    let t = max(largest, 1e-5);
    let shrink = select(1.0, 0x1p-32f, t >= 0x1p126f);
    return normal_quotient(1.0, t * shrink) * levels * shrink;
}

// round(v·scale), ties to even, within -128 .. 127. 1.5·2^23 leaves no bits for fractions; what is clamped is a product that no compiler fuses with a sum.
fn codes_of(v: vec4<f32>, scale: f32) -> vec4<i32> {
    let limited = clamp(v * scale, vec4<f32>(-128.0), vec4<f32>(127.0));
    return bitcast<vec4<i32>>(limited + vec4<f32>(12582912.0)) - vec4<i32>(0x4b400000);
}
