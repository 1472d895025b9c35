//! `src/ops/linalg/triangular_solve.rs`

use super::{Fate, Fate::*, Input, NOT_FINITE, case, small};
use crate::{Case, Matrix, floats, rng, roundings, seed};
use bitnet_wgpu::{
    linalg::{Triangle, triangular_solve},
    reference,
};
use rand::{RngExt, rngs::SmallRng};

/// Lower or upper, transposed or not, a diagonal of ones or not.
const TRIANGLES: [Triangle; 8] = [
    Triangle::LOWER,
    Triangle::UPPER,
    Triangle::LOWER.transposed(),
    Triangle::UPPER.transposed(),
    Triangle::LOWER.unit_diagonal(),
    Triangle::UPPER.unit_diagonal(),
    Triangle::LOWER.transposed().unit_diagonal(),
    Triangle::UPPER.transposed().unit_diagonal(),
];

/// The second half are unit triangles; odd ones are upper, and the third and fourth of each half
/// transposed.
fn is(triangle: usize) -> (bool, bool, bool) {
    (triangle % 2 == 1, triangle % 4 >= 2, triangle >= 4)
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for triangle in 0..TRIANGLES.len() {
        let seeded = || rng(triangle as u64);
        cases.extend(
            [(5, 3, 3), (33, 2, 1), (70, 34, 1)]
                .map(|(n, columns, count)| sound(&mut seeded(), triangle, n, columns, count)),
        );
        cases.push(sound(&mut seeded(), triangle, 150, 40, 2).device_only());
        let mut random = rng(1000 * seed() + triangle as u64);
        let (n, columns, count) =
            (random.random_range(1..50), random.random_range(1..40), random.random_range(1..4));
        cases.push(sound(&mut random, triangle, n, columns, count));
    }
    cases.extend(
        [(0, 3, 2), (1, 1, 1), (32, 32, 1), (64, 1, 4), (3, 0, 2)]
            .map(|(n, columns, count)| sound(&mut rng(8), 0, n, columns, count)),
    );
    cases.extend([0, 3].map(failing));
    cases
}

/// What substitution does not amplify: a large diagonal, or small numbers beside ones. The other
/// triangle, and a diagonal of ones, are no numbers.
fn well_conditioned(rng: &mut SmallRng, triangle: usize, n: usize) -> Vec<f32> {
    let (upper, _, unit) = is(triangle);
    let mut a = floats(rng, n * n, 1.0 / (n.max(1) as f32).sqrt());
    for i in 0..n {
        a[i * n + i] = if unit { f32::NAN } else { 1.5 + a[i * n + i] };
        let other = if upper { i * n..i * n + i } else { i * n + i + 1..(i + 1) * n };
        a[other].fill(f32::NAN);
    }
    a
}

fn sound(rng: &mut SmallRng, triangle: usize, n: usize, columns: usize, count: usize) -> Case {
    let matrices = (0..count).map(|_| well_conditioned(rng, triangle, n)).collect();
    let sides = (0..count).map(|_| floats(rng, n * columns, 3.0)).collect();
    of(
        format!("{count} of {n} × {n}, {columns} sides"),
        triangle,
        [n, columns],
        matrices,
        sides,
        vec![Fine; count],
    )
}

/// Zeros on the diagonal, numbers that are not finite in A and in b, a solution that overflows.
fn failing(triangle: usize) -> Case {
    let (n, columns, mut rng) = (35, 2, rng(10));
    let mut matrices: Vec<_> = (0..7).map(|_| well_conditioned(&mut rng, triangle, n)).collect();
    let mut sides: Vec<_> = (0..7).map(|_| floats(&mut rng, n * columns, 3.0)).collect();
    (matrices[1][33 * n + 33], matrices[1][20 * n + 20]) = (0.0, 0.0);
    matrices[2].fill(0.0);
    matrices[3][2 * n + 2] = f32::NAN;
    sides[4][7] = f32::NEG_INFINITY;
    matrices[5][4 * n + 4] = 1e-30;
    sides[5][4 * columns] = 1e20;
    matrices[6][n - 1] = if triangle == 0 { f32::NAN } else { f32::INFINITY };
    let last = if triangle == 0 { Fine } else { NOT_FINITE };
    of(
        "failing".into(),
        triangle,
        [n, columns],
        matrices,
        sides,
        vec![Fine, Fails(21), Fails(1), NOT_FINITE, NOT_FINITE, NOT_FINITE, last],
    )
}

fn of(
    name: String,
    triangle: usize,
    [n, columns]: [usize; 2],
    matrices: Vec<Vec<f32>>,
    sides: Vec<Vec<f32>>,
    fates: Vec<Fate>,
) -> Case {
    let (upper, transposed, unit) = is(triangle);
    let judge = move |given: &[&[f32]], x: &[&[f32]]| {
        let a = Matrix::from_fn(n, n, |i, j| match i.cmp(&j) {
            std::cmp::Ordering::Equal if unit => 1.0,
            std::cmp::Ordering::Less if !upper => 0.0,
            std::cmp::Ordering::Greater if upper => 0.0,
            _ => given[0][i * n + j].into(),
        });
        let a = if transposed { a.transposed() } else { a };
        let (b, x) = (Matrix::new(given[1], n, columns), Matrix::new(x[0], n, columns));
        // (A + E)·x = b with |E| <= n·u·|A| (Higham, Accuracy and Stability, theorem 8.5), random
        // roundings far below.
        small("A·x - b", a.times(&x).minus(&b).norm(), a.norm() * x.norm(), roundings(n))
    };
    let name = format!("{:?}: {name}", TRIANGLES[triangle]);
    let inputs =
        vec![Input { rows: n, columns: n, matrices }, Input { rows: n, columns, matrices: sides }];
    let reference = move |given: &[&[f32]]| {
        Ok(vec![reference::triangular_solve(given[0], given[1], n, TRIANGLES[triangle])?])
    };
    let record = move |r: &mut crate::Recorder, given: &[bitnet_wgpu::Tensor<f32>]| {
        triangular_solve(&given[0], &given[1], TRIANGLES[triangle]).forward(&mut r.encoder)
    };
    case(name, inputs, fates, record, |x| vec![x.clone()], reference, judge)
}
