// The softmax of a row over the shares so far, one after another: by online softmax (Milakov and Gimelshein, arXiv 1805.02867). Wherever shares meet,
// they are added in their order and by this, so that it does not matter who does it.
struct Merged { largest: f32, total: f32, sum: vec4<f32> }

fn merged(so_far: Merged, largest: f32, total: f32, sum: vec4<f32>) -> Merged {
    let top = max(so_far.largest, largest);
    let shrink = exp_negative(so_far.largest - top);
    let grow = exp_negative(largest - top);
    return Merged(top, fma(total, grow, so_far.total * shrink), fma(sum, vec4<f32>(grow), so_far.sum * shrink));
}

// In a row that sees nothing, sum and total are 0.
fn quotient(row: Merged) -> vec4<f32> { return row.sum * (1.0 / max(row.total, 1e-30)); }

// Writes elements 4·quad .. of the head that begins at y[start], or adds them.
fn put(start: u32, quad: u32, v: vec4<f32>) {
    for (var j = 0u; j < 4u; j += 1u) {
        if 4u * quad + j < params.head_dim {
            let at = start + 4u * quad + j;
            if params.add != 0u { y[at] += v[j]; } else { y[at] = v[j]; }
        }
    }
}
