//! `src/ops/linalg/solve.rs`

use super::{Fate, Fate::*, Input, NOT_FINITE, case, small};
use crate::{Case, Matrix, floats, hilbert, of_rank, rng, roundings, seed};
use bitnet_wgpu::{linalg::solve, reference};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let fixed = [(0, 2), (3, 0), (1, 1), (2, 3), (31, 1), (32, 33), (33, 2), (65, 1)];
    let mut cases: Vec<_> =
        (0..).zip(fixed).map(|(i, shape)| sound(&mut rng(i), shape, 1)).collect();
    cases.extend([
        sound(&mut rng(20), (9, 5), 3),
        sound(&mut rng(21), (130, 3), 4).device_only(),
        failing(),
    ]);
    let mut random = rng(1000 * seed());
    for _ in 0..4 {
        let (n, columns, count) =
            (random.random_range(1..60), random.random_range(1..5), random.random_range(1..4));
        cases.push(sound(&mut random, (n, columns), count));
    }
    cases
}

fn sound(rng: &mut SmallRng, (n, columns): (usize, usize), count: usize) -> Case {
    let matrices = (0..count).map(|_| floats(rng, n * n, 2.0)).collect();
    let sides = (0..count).map(|_| floats(rng, n * columns, 3.0)).collect();
    of(
        format!("{count} of {n} × {n}, {columns} sides"),
        [n, columns],
        matrices,
        sides,
        vec![Fine; count],
    )
}

/// Zero, of rank 20, with zeros where elimination without pivots would divide, with its last column
/// zero; ill-conditioned; numbers that are not finite.
fn failing() -> Case {
    let (n, mut rng) = (36, rng(22));
    let mut matrices: Vec<_> = (0..5).map(|_| floats(&mut rng, n * n, 1.0)).collect();
    let mut sides: Vec<_> = (0..8).map(|_| floats(&mut rng, n, 3.0)).collect();
    matrices[0] = Matrix::from_fn(n, n, |i, j| if i + j == n - 1 { 2.0 } else { 0.0 }).to_f32();
    (0..n).for_each(|row| matrices[1][row * n + n - 1] = 0.0);
    matrices[2][7 * n + 7] = f32::NAN;
    sides[3][0] = f32::NAN;
    matrices.extend([vec![0.0; n * n], of_rank(&mut rng, 20, n, n), hilbert(n, n)]);
    let fates = vec![Fine, Fails(36), NOT_FINITE, NOT_FINITE, Fine, Fails(1), FailsSomewhere, Open];
    of("failing".into(), [n, 1], matrices, sides, fates)
}

fn of(
    name: String,
    [n, columns]: [usize; 2],
    matrices: Vec<Vec<f32>>,
    sides: Vec<Vec<f32>>,
    fates: Vec<Fate>,
) -> Case {
    let judge = move |given: &[&[f32]], x: &[&[f32]]| {
        let (a, b, x) = (
            Matrix::new(given[0], n, n),
            Matrix::new(given[1], n, columns),
            Matrix::new(x[0], n, columns),
        );
        // (A + E)·x = b + f, with E and f multiples of u·|A| and u·|b| (Higham, Accuracy and
        // Stability, theorem 19.5).
        small("A·x - b", a.times(&x).minus(&b).norm(), a.norm() * x.norm() + b.norm(), roundings(n))
    };
    let inputs =
        vec![Input { rows: n, columns: n, matrices }, Input { rows: n, columns, matrices: sides }];
    let reference = move |given: &[&[f32]]| Ok(vec![reference::solve(given[0], given[1], n)?]);
    case(
        name,
        inputs,
        fates,
        |r, given| solve(&given[0], &given[1]).forward(&mut r.encoder),
        |x| vec![x.clone()],
        reference,
        judge,
    )
}
