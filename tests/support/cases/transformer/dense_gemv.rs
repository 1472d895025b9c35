//! `src/ops/transformer/dense_gemv.rs`

use crate::{Case, DENSE, Data, Near, U, dense, floats, rng, shapes};
use bitnet_wgpu::{DenseElement, transformer};
use rand::rngs::StdRng;

pub fn cases() -> Vec<Case> {
    let more = [(1, 5, 1280), (3, 32, 8), (4, 33, 15), (5, 67, 17), (1, 130, 257)];
    let more = (0u64..).zip(more).map(|(i, shape)| (rng(i), shape));
    shapes("dense_gemv").chain(more).flat_map(|(mut rng, shape)| DENSE.map(|element| case(&mut rng, element, shape))).collect()
}

fn case(rng: &mut StdRng, element: DenseElement, (m, n, k): (usize, usize, usize)) -> Case {
    let (w, x) = (dense(rng, element, n, k), floats(rng, m * k, 2.0));
    let rows: Vec<Vec<f32>> = (0..n).map(|row| w.row(row)).collect();
    let near = |at: usize| {
        let terms = || rows[at % n].iter().zip(&x[at / n * k..][..k]).map(|(&w, &x)| f64::from(w) * f64::from(x));
        // A rounding for the product, less than k for additions in whatever order, one for the scale, and one for that of `row`.
        Near { exact: terms().sum(), error: terms().map(f64::abs).sum::<f64>() * (k + 3) as f64 * U }
    };
    let wanted = (0..m * n).map(near).collect();
    // Padded to whole groups of sixteen bytes of the matrix.
    let padded = (k * element.bytes()).div_ceil(16) * 16 / element.bytes();
    let mut wide = vec![0.0; m * padded];
    for token in 0..m {
        wide[token * padded..][..k].copy_from_slice(&x[token * k..][..k]);
    }
    let packed = w.clone();
    Case::near(format!("{m} × {n} × {k} {element:?}"), wanted, move |r| {
        let (x, w) = (r.upload(&wide, [m, padded])?, w.upload(r.encoder.context())?);
        let y = transformer::dense_gemv(&mut r.encoder, &x, &w)?;
        r.watch_all(&y);
        Ok(())
    })
    .twin(move || vec![Data::F32(if k == 0 { vec![0.0; m * n] } else { transformer::dense_gemv_cpu(&x, &packed).unwrap() })])
}
