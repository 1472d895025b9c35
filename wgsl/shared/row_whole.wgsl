// For shared/row: rows of whole quads, a load for each of them.

// The quad that a load goes to: none goes beyond the row.
fn within(quad: u32) -> u32 { return min(quad, params.features / 4u - 1u); }

// Zeros in place of what is beyond the row.
fn cut(v: vec4<f32>, quad: u32) -> vec4<f32> { return select(vec4<f32>(), v, 4u * quad < params.features); }
