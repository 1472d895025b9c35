// Activations whose lines are whole words, their quads by place (quads_by_place.wgsl): lanes that have a word each load what lies side by side.
@group(0) @binding(0) var<storage, read> a: array<vec4<X>>;

// Elements at .. at + 4 of a line that there are.
fn left_quad(batch: u32, line: u32, at: u32) -> vec4<f32> {
    return vec4<f32>(a[(4u * line + at / 4u % 4u) * (params.k / 16u) + at / 16u]);
}
