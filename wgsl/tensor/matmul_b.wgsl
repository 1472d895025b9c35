// The right side of a product, of lines of any length.
@group(0) @binding(1) var<storage, read> b: array<X>;

// Elements at .. at + 4 of a line, 0 where there is none.
fn right_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    let size = right_size();
    var quad = vec4<f32>();
    if line < size.x {
        let first = (right_start(batch) + line) * size.y + at;
        if at < size.y { quad.x = f32(b[first]); }
        if at + 1u < size.y { quad.y = f32(b[first + 1u]); }
        if at + 2u < size.y { quad.z = f32(b[first + 2u]); }
        if at + 3u < size.y { quad.w = f32(b[first + 3u]); }
    }
    return quad;
}
