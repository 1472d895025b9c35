// Whole numbers of up to 15 bits and a sign, from floats, which are rounded to even: the last bit of v + 1.5·2^23 is a whole one. A conversion takes a GPU
// several times as long. What is not finite becomes some number.
fn whole_numbers(v: vec4<f32>) -> vec4<u32> { return bitcast<vec4<u32>>(v + vec4<f32>(12582912.0)) - vec4<u32>(0x4b400000u); }

// Four of them as bytes with signs in words: number = 2^8·x + y.
fn byte_planes(whole: vec4<u32>) -> vec2<u32> { return vec2<u32>(pack4xU8((whole + vec4<u32>(128u)) >> vec4<u32>(8u)), pack4xU8(whole)); }
