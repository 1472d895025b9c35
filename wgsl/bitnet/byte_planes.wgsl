// Four multiples of up to 16 bits and a sign as bytes in words: number = 2^16·x + 2^8·y + z, where bytes of x have signs, those of y and z none.
fn byte_planes(multiples: vec4<f32>) -> vec3<u32> {
    let whole = bitcast<vec4<u32>>(vec4<i32>(multiples));
    return vec3<u32>(pack4xU8(whole >> vec4<u32>(16u)), pack4xU8(whole >> vec4<u32>(8u)), pack4xU8(whole));
}
