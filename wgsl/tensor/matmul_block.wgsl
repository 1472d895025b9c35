// Blocks of 4 × 4 numbers, in four rows, that stay in registers.
struct Block { x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, w: vec4<f32> }

fn transposed(b: Block) -> Block {
    return Block(
        vec4<f32>(b.x.x, b.y.x, b.z.x, b.w.x), vec4<f32>(b.x.y, b.y.y, b.z.y, b.w.y),
        vec4<f32>(b.x.z, b.y.z, b.z.z, b.w.z), vec4<f32>(b.x.w, b.y.w, b.z.w, b.w.w),
    );
}

// sum + column·row
fn outer(column: vec4<f32>, row: vec4<f32>, sum: Block) -> Block {
    return Block(
        fma(vec4<f32>(column.x), row, sum.x), fma(vec4<f32>(column.y), row, sum.y),
        fma(vec4<f32>(column.z), row, sum.z), fma(vec4<f32>(column.w), row, sum.w),
    );
}
