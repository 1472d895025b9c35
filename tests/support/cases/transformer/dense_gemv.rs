//! `src/ops/transformer/dense_gemv.rs`

use crate::{Case, DENSE, Data, Near, U, dense, floats, rng, shapes};
use bitnet_wgpu::{Out, reference, transformer, weights::DenseElement};
use rand::rngs::SmallRng;

pub fn cases() -> Vec<Case> {
    // Up to 1023 rows of floats are split over a workgroup.
    let more = [
        (1, 5, 1280),
        (3, 32, 8),
        (4, 33, 15),
        (5, 67, 17),
        (1, 130, 257),
        (9, 6, 2060),
        (1, 1023, 5),
        (1, 1024, 12),
        (3, 1025, 9),
        (6, 1030, 4),
    ];
    let more = (0u64..).zip(more).map(|(i, shape)| (rng(i), shape));
    let all = shapes("dense_gemv").chain(more).zip([false, false, true].into_iter().cycle());
    all.flat_map(|((mut rng, shape), add)| {
        let elements = if shape.1 < 1000 { &DENSE[..] } else { &[DenseElement::F32] };
        elements.iter().map(|&element| case(&mut rng, element, shape, add)).collect::<Vec<_>>()
    })
    .collect()
}

fn case(
    rng: &mut SmallRng,
    element: DenseElement,
    (m, n, k): (usize, usize, usize),
    add: bool,
) -> Case {
    let (w, x) = (dense(rng, element, n, k), floats(rng, m * k, 2.0));
    let rows: Vec<Vec<f32>> = (0..n).map(|row| w.row(row)).collect();
    let near = |at: usize| {
        let terms = || {
            rows[at % n]
                .iter()
                .zip(&x[at / n * k..][..k])
                .map(|(&w, &x)| f64::from(w) * f64::from(x))
        };
        // A rounding for the product, less than k for additions in whatever order, one for the
        // scale, and one for that of `row`.
        Near {
            exact: terms().sum(),
            error: terms().map(f64::abs).sum::<f64>() * (k + 3) as f64 * U,
        }
    };
    let expected: Vec<Near> = (0..m * n).map(near).collect();
    let packed = w.clone();
    let base = add.then(|| floats(rng, m * n, 9.0));
    // With what is added, the sum is rounded once more.
    let total = |(i, near): (usize, &Near)| match &base {
        Some(base) => near.on_top_of(base[i]),
        None => *near,
    };
    let expected = expected.iter().enumerate().map(total).collect();
    let (given, reference_base) = (x.clone(), base.clone());
    Case::near(format!("{m} × {n} × {k} {element:?}, added {add}"), expected, move |r| {
        let (x, w) = (r.upload(&given, [m, k])?, w.upload(r.encoder.context())?);
        let y = match &base {
            Some(base) => {
                let y = r.upload(base, [m, n])?;
                transformer::dense_gemv(&x, &w).forward_into(&mut r.encoder, Out::add(&y))?;
                y
            }
            None => transformer::dense_gemv(&x, &w).forward(&mut r.encoder)?,
        };
        r.watch_all(&y);
        Ok(())
    })
    .reference(move || {
        let mut y =
            if k == 0 { vec![0.0; m * n] } else { reference::dense_gemv(&x, &packed).unwrap() };
        y.iter_mut().zip(reference_base.iter().flatten()).for_each(|(y, base)| *y += base);
        vec![Data::F32(y)]
    })
    // With it, activations are rounded: dense_int8.rs.
    .on(|c| c.fast_packed_dot = false)
}
