// Whole numbers of up to 16 bits and a sign, from floats, which are rounded to even: the last bit of v + 1.5·2^23 is a whole one. A conversion takes a GPU
// several times as long. What is not finite becomes some number.
fn whole_numbers(v: vec4<f32>) -> vec4<u32> { return bitcast<vec4<u32>>(v + vec4<f32>(12582912.0)) - vec4<u32>(0x4b400000u); }

// Four of them as bytes in words: number = 2^16·x + 2^8·y + z, where bytes of x have signs, those of y and z none.
fn byte_planes(whole: vec4<u32>) -> vec3<u32> {
    return vec3<u32>(pack4xU8(whole >> vec4<u32>(16u)), pack4xU8(whole >> vec4<u32>(8u)), pack4xU8(whole));
}
