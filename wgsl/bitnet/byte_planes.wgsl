// Four multiples of up to 16 bits and a sign as bytes in words: number = 2^14·x + 2^7·y + z.
fn bytes(v: vec4<i32>) -> u32 {
    let low = bitcast<vec4<u32>>(v) & vec4<u32>(0xffu);
    return low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}

// The last seven bits, with a sign.
fn last_bits(v: vec4<i32>) -> vec4<i32> { return (v << vec4<u32>(25u)) >> vec4<u32>(25u); }

fn byte_planes(multiples: vec4<f32>) -> vec3<u32> {
    let whole = vec4<i32>(multiples);
    let third = last_bits(whole);
    let others = (whole - third) >> vec4<u32>(7u);
    let second = last_bits(others);
    return vec3<u32>(bytes((others - second) >> vec4<u32>(7u)), bytes(second), bytes(third));
}
