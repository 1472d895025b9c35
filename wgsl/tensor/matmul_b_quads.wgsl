// The right side of a product, whose lines are whole quads, which are loaded at once.
@group(0) @binding(1) var<storage, read> b: array<vec4<X>>;

// Elements at .. at + 4 of a line, 0 where there is none.
fn right_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    let size = right_size();
    if line >= size.x || at >= size.y { return vec4<f32>(); }
    return vec4<f32>(b[((right_start(batch) + line) * size.y + at) / 4u]);
}
