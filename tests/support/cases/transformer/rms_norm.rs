//! `src/ops/transformer/rms_norm.rs`

use crate::{Case, Data, activations, floats, random_shapes, rng};
use bitnet_wgpu::transformer;
use rand::{RngExt, rngs::StdRng};

const EPS: f32 = 1e-5;

/// Rows of `x`, its columns, the first row that is asked for, how many, and the columns of the result.
type Shape = (usize, usize, usize, usize, usize);

pub fn cases() -> Vec<Case> {
    let fixed: [Shape; 11] = [
        (1, 1, 0, 1, 4),
        (2, 31, 1, 1, 32),
        (9, 257, 2, 7, 264),
        (5, 257, 0, 5, 272),
        (3, 1280, 0, 3, 1280),
        (4, 8, 0, 4, 300),
        (4, 8, 4, 0, 8),
        (0, 8, 0, 0, 16),
        (7, 33, 3, 2, 333),
        (3, 2560, 0, 3, 2560),
        (45, 19, 4, 40, 32),
    ];
    let mut cases: Vec<_> = (0u64..).zip(fixed).map(|(i, shape)| case(&mut rng(i), shape)).collect();
    for (i, (m, padding, k)) in (0..).zip(random_shapes("rms_norm")) {
        let mut rng = rng(1000 * crate::seed() + i);
        let first = rng.random_range(0..=m);
        let tokens = rng.random_range(0..=m - first);
        cases.push(case(&mut rng, (m, k, first, tokens, k + padding)));
    }
    cases
}

fn case(rng: &mut StdRng, (m, k, first, tokens, padded): Shape) -> Case {
    let (x, gain) = (activations(rng, m, k), floats(rng, k, 2.0));
    let normed = transformer::rms_norm_cpu(&x, &gain, EPS).unwrap();
    let mut y = vec![0.0; tokens * padded];
    for token in 0..tokens {
        y[token * padded..][..k].copy_from_slice(&normed[(first + token) * k..][..k]);
    }
    Case::exact(format!("rows {first}.. of {m} × {k} as {tokens} × {padded}"), vec![Data::F32(y)], move |r| {
        let (x, gain, y) = (r.upload(&x, [m, k])?, r.upload(&gain, [k])?, r.output([tokens, padded])?);
        transformer::rms_norm(&mut r.encoder, &x, first, &gain, EPS, &y)?;
        r.watch_all(&y);
        Ok(())
    })
}
