// The left side of a product, whose lines are whole quads, which are loaded at once.
@group(0) @binding(0) var<storage, read> a: array<vec4<X>>;

// Elements at .. at + 4 of a line, 0 where there is none.
fn left_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    let size = left_size();
    if line >= size.x || at >= size.y { return vec4<f32>(); }
    return vec4<f32>(a[((left_start(batch) + line) * size.y + at) / 4u]);
}
