//! `src/ops/recurrent/output_gate.rs`

use crate::{
    Case, Data, Near, Recorder,
    cases::tensor::{activations::sigma, unary::times},
    floats, rng,
};
use bitnet_wgpu::{recurrent, reference};

pub fn cases() -> Vec<Case> {
    let shapes = [(1, 1, 1), (3, 5, 17), (0, 4, 4), (2, 300, 301), (7, 33, 40)];
    (0u64..)
        .zip(shapes)
        .map(|(i, (tokens, columns, stride))| case(i, tokens, columns, stride))
        .collect()
}

fn case(seed: u64, tokens: usize, columns: usize, stride: usize) -> Case {
    let mut rng = rng(seed);
    let (x, rows) =
        (floats(&mut rng, tokens * columns, 3.0), floats(&mut rng, tokens * stride, 20.0));
    let gates: Vec<f32> =
        rows.chunks_exact(stride).flat_map(|row| &row[stride - columns..]).copied().collect();
    let near = |(&x, &gate): (&f32, &f32)| times(sigma(gate.into(), 0.0), x.into(), 1.0);
    let expected: Vec<Near> = x.iter().zip(&gates).map(near).collect();
    let mut y = x.clone();
    reference::output_gate(&mut y, &gates).unwrap();
    let record = move |r: &mut Recorder| {
        let (x, gates) = (r.upload(&x, [tokens, columns])?, r.upload(&rows, [tokens, stride])?);
        recurrent::output_gate(&mut r.encoder, &x, &gates)?;
        r.watch_all(&x);
        Ok(())
    };
    Case::near(format!("{tokens} × {columns} of {stride}"), expected, record)
        .reference(move || vec![Data::F32(y.clone())])
}
