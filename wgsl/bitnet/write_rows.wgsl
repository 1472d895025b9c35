// Stores what a thread has of a token: sums of four rows, APART from one another, the first of which is row0. A kernel that includes this defines Acc,
// APART and finish(sum, x_sum).
fn write_rows(token: u32, row0: u32, acc: vec4<Acc>) {
    if token >= params.tokens { return; }
    for (var i = 0u; i < 4u; i += 1u) {
        let row = row0 + APART * i;
        if row >= params.rows { return; }
        let product = finished(exact_quotient(finish(acc[i], x_sum[token]) * w_scale[row], x_scale[token]), bias_of(row));
        let output = token * params.rows + row;
        if params.add != 0u { y[output] = Y(f32(y[output]) + product); } else { y[output] = Y(product); }
    }
}
