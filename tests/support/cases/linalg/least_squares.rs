//! `src/ops/linalg/least_squares.rs`

use super::{Fate, Fate::*, Input, NOT_FINITE, case, small};
use crate::{Case, Matrix, floats, hilbert, of_rank, rng, roundings, seed};
use bitnet_wgpu::{linalg::least_squares, reference};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    let fixed = [
        (0, 0, 2),
        (3, 0, 2),
        (4, 2, 0),
        (1, 1, 1),
        (5, 1, 3),
        (6, 6, 2),
        (33, 7, 1),
        (40, 33, 34),
        (70, 65, 1),
    ];
    let mut cases: Vec<_> =
        (0..).zip(fixed).map(|(i, shape)| sound(&mut rng(i), shape, 1)).collect();
    cases.extend([
        sound(&mut rng(20), (9, 5, 2), 3),
        sound(&mut rng(21), (150, 70, 3), 4).device_only(),
        failing(),
    ]);
    let mut random = rng(1000 * seed());
    for _ in 0..4 {
        let (n, more) = (random.random_range(1..50), random.random_range(0..30));
        let (columns, count) = (random.random_range(1..5), random.random_range(1..4));
        cases.push(sound(&mut random, (n + more, n, columns), count));
    }
    cases
}

fn sound(rng: &mut SmallRng, (m, n, columns): (usize, usize, usize), count: usize) -> Case {
    let matrices = (0..count).map(|_| floats(rng, m * n, 2.0)).collect();
    let sides = (0..count).map(|_| floats(rng, m * columns, 3.0)).collect();
    of(
        format!("{count} of {m} × {n}, {columns} sides"),
        [m, n, columns],
        matrices,
        sides,
        vec![Fine; count],
    )
}

/// Dependent columns, zeros, ill-conditioned, columns of many magnitudes, and numbers that are not
/// finite.
fn failing() -> Case {
    let (m, n, mut rng) = (45, 37, rng(22));
    let mut matrices: Vec<_> = (0..6).map(|_| floats(&mut rng, m * n, 1.0)).collect();
    let mut sides: Vec<_> = (0..8).map(|_| floats(&mut rng, m, 3.0)).collect();
    // Column 36 is a sum of two before it, column 5 is zero.
    (0..m).for_each(|row| {
        matrices[1][row * n + 35] = matrices[1][row * n + 3] - 2.0 * matrices[1][row * n + 34]
    });
    (0..m).for_each(|row| matrices[2][row * n + 4] = 0.0);
    (0..m * n).for_each(|at| matrices[3][at] *= 10f32.powi((at % n) as i32 * 7 % 40 - 20));
    matrices[4][m * n - 1] = f32::NAN;
    sides[5][44] = f32::INFINITY;
    matrices.extend([of_rank(&mut rng, 9, m, n), hilbert(m, n)]);
    let fates = vec![Fine, Fails(36), Fails(5), Fine, NOT_FINITE, NOT_FINITE, FailsSomewhere, Open];
    of("failing".into(), [m, n, 1], matrices, sides, fates)
}

fn of(
    name: String,
    [m, n, columns]: [usize; 3],
    matrices: Vec<Vec<f32>>,
    sides: Vec<Vec<f32>>,
    fates: Vec<Fate>,
) -> Case {
    let judge = move |given: &[&[f32]], x: &[&[f32]]| {
        let (a, b, x) = (
            Matrix::new(given[0], m, n),
            Matrix::new(given[1], m, columns),
            Matrix::new(x[0], n, columns),
        );
        let rest = a.times(&x).minus(&b);
        // x is that of a matrix and a side near the given ones, by a multiple of u and a column at
        // a time (Higham, Accuracy and Stability, theorem 20.3): so the rest is orthogonal to A's
        // columns but for this.
        let sizes = Matrix::from_fn(n, columns, |j, c| a.column(j).norm() * x.at(j, c).abs());
        let size = (0..columns).map(|c| sizes.column(c).norm() + b.column(c).norm()).sum::<f64>();
        let products = a.transposed().times(&rest);
        (0..n).try_for_each(|j| {
            let product: f64 = (0..columns).map(|c| products.at(j, c).abs()).sum();
            small("Aᵀ(A·x - b)", product, a.column(j).norm() * size, 2.0 * roundings(m))
        })
    };
    let inputs =
        vec![Input { rows: m, columns: n, matrices }, Input { rows: m, columns, matrices: sides }];
    let reference =
        move |given: &[&[f32]]| Ok(vec![reference::least_squares(given[0], given[1], m, n)?]);
    case(
        name,
        inputs,
        fates,
        |r, given| least_squares(&given[0], &given[1]).forward(&mut r.encoder),
        |x| vec![x.clone()],
        reference,
        judge,
    )
}
