// The left side of a product, of lines of any length.
@group(0) @binding(0) var<storage, read> a: array<X>;

// Elements at .. at + 4 of a line, 0 where there is none.
fn left_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    let size = left_size();
    var quad = vec4<f32>();
    if line < size.x {
        let first = (left_start(batch) + line) * size.y + at;
        if at < size.y { quad.x = f32(a[first]); }
        if at + 1u < size.y { quad.y = f32(a[first + 1u]); }
        if at + 2u < size.y { quad.z = f32(a[first + 2u]); }
        if at + 3u < size.y { quad.w = f32(a[first + 3u]); }
    }
    return quad;
}
