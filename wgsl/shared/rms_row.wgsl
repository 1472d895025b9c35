// rms.wgsl for a row as row.wgsl has it; then every number is v · inverse · gain. All threads that share a row must call normalize_row together, after
// clear_cells; `gain` is the kernel's, and gain_quad in shared/gain_any or shared/gain_whole.
var<private> inverse: f32;

// Beyond the row, `inverse` or `gain` could make something else of 0.
fn finished(v: vec4<f32>, quad: u32) -> vec4<f32> { return cut(apart(v * inverse, params.features) * gain_quad(quad), quad); }

fn normalize_row(token: u32, ids: Ids) {
    var gains = array<vec4<f32>, HELD>();
    for (var h = 0u; h < HELD; h += 1u) {
        let quad = place(ids) + h * SHARERS;
        if 4u * quad < params.features { gains[h] = gain_quad(quad); }
    }
    var largest = 0u;
    for (var h = 0u; h < HELD; h += 1u) { largest = max(largest, magnitude(held[h])); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += SHARERS) { largest = max(largest, magnitude(fetched_numbers(token, quad))); }
    largest = cell_max(0u, largest, ids);
    let scale = square_scale(row_exponent(largest));
    var sums = vec2<u32>();
    for (var h = 0u; h < HELD; h += 1u) { sums += quad_limbs(held[h] * scale); }
    for (var quad = beyond(ids); 4u * quad < params.features; quad += SHARERS) { sums += quad_limbs(fetched_numbers(token, quad) * scale); }
    inverse = inverse_rms(largest, cell_sum2(1u, sums, ids), params.features, params.eps);
    for (var h = 0u; h < HELD; h += 1u) { held[h] = cut(apart(held[h] * inverse, params.features) * gains[h], place(ids) + h * SHARERS); }
}
