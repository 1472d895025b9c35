// A random choice by weights in integers, equal on every device. See src/ops/race.rs, whose functions these are. Needs shared/philox for `upper`,
// and a parameter `zero`.
const FAR: u32 = 0x40000000u;

// The difference and the product are rounded once each. A compiler with fast math could make fma(largest, scale, -logit * scale) of them, if it knew that the
// parameter `zero` is 0.
fn distance_below(largest: f32, logit: f32, scale: f32) -> u32 {
    let difference = bitcast<f32>(bitcast<u32>(largest - logit) ^ params.zero);
    let octaves = difference * scale;
    return select(FAR, u32(min(octaves, 1073741824.0)), octaves < 1073741824.0);
}

fn weight(distance: u32) -> u32 {
    let y = distance << 8u;
    var c = 0x9c200u - upper(y, 0xbda6u);
    c = 0x5728b0u - upper(y, c);
    c = 0x27641a9u - upper(y, c);
    c = 0xe358127u - upper(y, c);
    c = 0x3d7f7bcbu - upper(y, c);
    c = 0xb17217f7u - upper(y, c);
    let m = 0x80000000u - (upper(y, c) >> 1u);
    return select(m >> min(distance >> 24u, 31u), 0u, distance >= 0x20000000u);
}

// log2 of a whole number above 0, in units of 2^-24.
fn log2_units(x: u32) -> u32 {
    let leading = firstLeadingBit(x);
    let t = (x << (31u - leading)) << 1u;
    var c = 0x4f6fdebu - upper(t, 0xe0aa30u);
    c = 0xd2d8686u - upper(t, c);
    c = 0x16f02c42u - upper(t, c);
    c = 0x1fb6029fu - upper(t, c);
    c = 0x2845db46u - upper(t, c);
    c = 0x33bfa732u - upper(t, c);
    c = 0x475585f8u - upper(t, c);
    c = 0x715475f0u - upper(t, c);
    return (leading << 24u) | ((t + upper(upper(t, ~t), c)) >> 8u);
}

// The logarithm of an exponential variate, which is Gumbel noise with the other sign.
fn noise(word: u32) -> u32 {
    if word >= 0x80000000u { return log2_units(0x21000000u - log2_units(2u * ~word + 1u)) + 142123716u; }
    let y = 2u * word + 1u;
    let z = ~y;
    var c = 0x190b34du - upper(z, 0x45f022u);
    c = 0x43ed6f6u - upper(z, c);
    c = 0x7ac571bu - upper(z, c);
    c = 0xb4d5352u - upper(z, c);
    c = 0xfdf7825u - upper(z, c);
    c = 0x17da0d39u - upper(z, c);
    c = 0x2add4baeu - upper(z, c);
    c = 0x78a2c43cu - upper(z, c);
    return log2_units(y) + (upper(y, c) >> 8u);
}
