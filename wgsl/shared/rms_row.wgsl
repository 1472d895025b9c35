// rms.wgsl for a row as row.wgsl has it; then every number is v · inverse · gain. All threads that share a row must call normalize_row together, after
// clear_cells; `gain` is the kernel's, and gain_quad in shared/gain_any or shared/gain_whole.
var<private> inverse: f32;

// Beyond the row, `inverse` or `gain` could make something else of 0.
fn finished(v: vec4<f32>, quad: u32) -> vec4<f32> { return cut(apart(v * inverse, params.features) * gain_quad(quad), quad); }

fn normalize_row(token: u32, ids: Ids) {
    var largest = 0u;
    for (var h = 0u; h < HELD; h += 1u) { largest = max(largest, magnitude(held[h])); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += SHARERS) { largest = max(largest, magnitude(fetched_numbers(token, quad))); }
    largest = cell_max(0u, largest, ids);
    let scale = square_scale(row_exponent(largest));
    var sums = vec2<u32>();
    for (var h = 0u; h < HELD; h += 1u) { sums += quad_limbs(held[h] * scale); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += SHARERS) { sums += quad_limbs(fetched_numbers(token, quad) * scale); }
    sums = cell_sum2(1u, sums, ids);
    if is_one(ids) { inverse = inverse_rms(largest, sums, params.features, params.eps); }
    inverse = from_one(6u, inverse, ids);
    // Of a row of no numbers there are no gains.
    if params.features == 0u { return; }
    for (var h = 0u; h < HELD; h += 1u) { held[h] = finished(held[h], place(ids) + h * SHARERS); }
}
