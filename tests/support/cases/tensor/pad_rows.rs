//! `src/ops/tensor/pad_rows.rs`

use crate::{Case, Data, activations, convert, shapes};
use bitnet_wgpu::tensor::{self, Float, f16};

pub fn cases() -> Vec<Case> {
    let all = shapes("pad_rows").flat_map(|(mut rng, (rows, padding, columns))| {
        let x = activations(&mut rng, rows, columns);
        [
            case::<f32>(&x, rows, columns, columns + padding),
            case::<f16>(&x, rows, columns, columns + padding),
        ]
    });
    all.collect()
}

fn case<T: Float>(x: &[f32], rows: usize, columns: usize, padded: usize) -> Case {
    let x = convert::<T>(x);
    let mut y = vec![T::from_f32(0.0); rows * padded];
    for row in 0..rows {
        y[row * padded..][..columns].copy_from_slice(&x[row * columns..][..columns]);
    }
    let expected = Data::floats(T::ELEMENT, &y.into_iter().map(Into::into).collect::<Vec<f32>>());
    Case::exact(
        format!("{rows} × {columns} to {padded} {:?}", T::ELEMENT),
        vec![expected],
        move |r| {
            let x = r.upload(&x, [rows, columns])?;
            let y = tensor::pad_rows(&x, padded).forward(&mut r.encoder)?;
            r.watch_all(&y);
            Ok(())
        },
    )
    .of(T::ELEMENT)
}
