// For shared/row: rows of any length, a load for each number.

// Where a load of the i-th number of a row goes: none goes beyond the row.
fn within(i: u32) -> u32 { return min(i, params.features - 1u); }

// Zeros in place of what is beyond the row.
fn cut(v: vec4<f32>, quad: u32) -> vec4<f32> {
    let left = max(params.features, 4u * quad) - 4u * quad;
    return vec4<f32>(select(0.0, v.x, left > 0u), select(0.0, v.y, left > 1u), select(0.0, v.z, left > 2u), select(0.0, v.w, left > 3u));
}
