// Keeps four codes of a row in workgroup memory in the int8 layout, for norm_bitlinear.wgsl.
fn store(quad: u32, codes: vec4<i32>) { x[quad] = pack4xI8(codes); }
