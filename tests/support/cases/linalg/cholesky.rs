//! `src/ops/linalg/cholesky.rs`

use super::{Fate, Fate::*, Input, NOT_FINITE, case, small};
use crate::{Case, Matrix, floats, hilbert, rng, roundings, seed};
use bitnet_wgpu::{linalg::cholesky, reference};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    // Nothing, one, both sides of a block of 32 and of two, and of a workgroup's rows.
    let mut cases: Vec<_> =
        [0, 1, 2, 5, 31, 32, 33, 64, 65].map(|n| sound(&mut rng(n as u64), n, 1)).into();
    cases.push(sound(&mut rng(1), 7, 3));
    cases.push(sound(&mut rng(2), 37, 4));
    cases.push(sound(&mut rng(3), 0, 3));
    cases.push(sound(&mut rng(4), 150, 2).device_only());
    cases.push(failing());
    cases.push(ill_conditioned());
    let mut random = rng(1000 * seed());
    cases.extend(
        (0..3)
            .map(|_| (random.random_range(1..60), random.random_range(1..4)))
            .map(|(n, count)| sound(&mut rng(seed()), n, count)),
    );
    cases
}

/// B·Bᵀ/n + I/4: its condition is moderate.
fn positive_definite(rng: &mut SmallRng, n: usize) -> Vec<f32> {
    let b = Matrix::new(&floats(rng, n * n, 1.0), n, n);
    let product = b.times(&b.transposed());
    Matrix::from_fn(n, n, |i, j| product.at(i, j) / n as f64 + if i == j { 0.25 } else { 0.0 })
        .to_f32()
}

fn sound(rng: &mut SmallRng, n: usize, count: usize) -> Case {
    let matrices = (0..count).map(|_| positive_definite(rng, n)).collect();
    of(format!("{count} of {n} × {n}"), n, matrices, vec![Fine; count])
}

/// Among sound ones: a pivot that is negative in the second block, zeros, a NaN, an infinity, and
/// what is not read.
fn failing() -> Case {
    let (n, mut rng) = (41, rng(9));
    let mut matrices: Vec<_> = (0..6).map(|_| positive_definite(&mut rng, n)).collect();
    matrices[1][36 * n + 36] = -1.0;
    matrices[2].fill(0.0);
    matrices[3][40 * n + 7] = f32::NAN;
    matrices[4][3 * n + 3] = f32::INFINITY;
    (0..n).for_each(|row| matrices[5][row * n + row + 1..(row + 1) * n].fill(f32::NAN));
    of("failing".into(), n, matrices, vec![Fine, Fails(37), Fails(1), NOT_FINITE, NOT_FINITE, Fine])
}

/// Hilbert's matrix, which rounding makes indefinite; one of rank 5; tiny and huge numbers.
fn ill_conditioned() -> Case {
    let n = 40;
    let thin = Matrix::new(&floats(&mut rng(10), n * 5, 1.0), n, 5);
    let low = thin.times(&thin.transposed()).to_f32();
    let scaled =
        |factor: f32| positive_definite(&mut rng(11), n).iter().map(|v| v * factor).collect();
    of(
        "ill-conditioned".into(),
        n,
        vec![hilbert(n, n), low, scaled(1e-30), scaled(1e30)],
        vec![Open, Open, Fine, Fine],
    )
}

fn of(name: String, n: usize, matrices: Vec<Vec<f32>>, fates: Vec<Fate>) -> Case {
    let judge = move |a: &[&[f32]], l: &[&[f32]]| {
        let l = Matrix::new(l[0], n, n);
        if (0..n * n).any(|at| at % n > at / n && l.numbers[at] != 0.0)
            || (0..n).any(|i| l.at(i, i) <= 0.0)
        {
            return Err("it is not lower triangular with a positive diagonal".into());
        }
        // Of what is above the diagonal nothing is read.
        let a = Matrix::from_fn(n, n, |i, j| a[0][i.max(j) * n + i.min(j)].into());
        // |A - L·Lᵀ| <= (n + 1)·u·|L|·|Lᵀ| (Higham, Accuracy and Stability, theorem 10.3), and |L|² is the trace of A. Random
        // roundings stay far below.
        let trace: f64 = (0..n).map(|i| a.at(i, i)).sum();
        small("A - L·Lᵀ", a.minus(&l.times(&l.transposed())).norm(), trace, roundings(n))
    };
    let input = Input { rows: n, columns: n, matrices };
    let reference = move |a: &[&[f32]]| Ok(vec![reference::cholesky(a[0], n)?]);
    case(
        name,
        vec![input],
        fates,
        |r, a| cholesky(&a[0]).forward(&mut r.encoder),
        |l| vec![l.clone()],
        reference,
        judge,
    )
}
