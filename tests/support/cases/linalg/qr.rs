//! `src/ops/linalg/qr.rs`

use super::{Fate, Fate::*, Input, NOT_FINITE, case, orthonormal, small};
use crate::{Case, Matrix, Recorder, floats, hilbert, of_rank, rng, roundings, seed};
use bitnet_wgpu::{
    Tensor,
    linalg::{Qr, qr},
    reference,
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    // Without rows or columns, one, tall, wide, both sides of a panel of 32 and of two.
    let fixed = [
        (0, 3),
        (3, 0),
        (1, 1),
        (1, 5),
        (5, 1),
        (7, 4),
        (4, 7),
        (32, 32),
        (33, 31),
        (31, 40),
        (40, 33),
        (70, 65),
    ];
    let mut cases: Vec<_> = (0..)
        .zip(fixed)
        .flat_map(|(i, shape)| [false, true].map(|full| sound(&mut rng(i), shape, 1, full)))
        .collect();
    cases.extend([sound(&mut rng(20), (9, 5), 3, false), sound(&mut rng(21), (35, 3), 4, true)]);
    cases.extend(
        [(150, 100), (100, 150)].map(|shape| sound(&mut rng(22), shape, 2, true).device_only()),
    );
    cases.extend([odd((37, 34), false), odd((6, 9), true)]);
    let mut random = rng(1000 * seed());
    for _ in 0..4 {
        let (shape, count) =
            ((random.random_range(1..60), random.random_range(1..60)), random.random_range(1..4));
        let full = random.random();
        cases.push(sound(&mut random, shape, count, full));
    }
    cases
}

fn sound(rng: &mut SmallRng, (m, n): (usize, usize), count: usize, full: bool) -> Case {
    let matrices = (0..count).map(|_| floats(rng, m * n, 2.0)).collect();
    of(format!("{count} of {m} × {n}"), [m, n], full, matrices, vec![Fine; count])
}

/// Zero, rank 2, ill-conditioned, columns of many magnitudes, the largest and the smallest numbers;
/// numbers that are not finite.
fn odd((m, n): (usize, usize), full: bool) -> Case {
    let mut rng = rng(23);
    let mut graded = floats(&mut rng, m * n, 1.0);
    graded
        .iter_mut()
        .enumerate()
        .for_each(|(at, v)| *v *= 10f32.powi((at % n) as i32 * 7 % 60 - 30));
    let scaled = |rng: &mut SmallRng, factor: f32| {
        floats(rng, m * n, 1.0).iter().map(|v| v * factor).collect::<Vec<_>>()
    };
    // The rounding of still smaller ones would be subnormal, which devices may flush.
    let (huge, tiny) = (scaled(&mut rng, 1e37), scaled(&mut rng, 1e-30));
    let (mut nan, mut infinite, mut overflow) =
        (scaled(&mut rng, 1.0), scaled(&mut rng, 1.0), scaled(&mut rng, 1.0));
    (nan[m * n - 1], infinite[n / 2]) = (f32::NAN, f32::NEG_INFINITY);
    (0..m).for_each(|row| overflow[row * n] = 3e38);
    let matrices = vec![
        vec![0.0; m * n],
        of_rank(&mut rng, 2, m, n),
        hilbert(m, n),
        graded,
        huge,
        tiny,
        nan,
        infinite,
        overflow,
    ];
    let fates = vec![Fine, Fine, Fine, Fine, Fine, Fine, NOT_FINITE, NOT_FINITE, NOT_FINITE];
    of(format!("odd ones of {m} × {n}"), [m, n], full, matrices, fates)
}

fn of(
    name: String,
    [m, n]: [usize; 2],
    full: bool,
    matrices: Vec<Vec<f32>>,
    fates: Vec<Fate>,
) -> Case {
    let p = if full { m } else { m.min(n) };
    let judge = move |a: &[&[f32]], factors: &[&[f32]]| {
        let (a, q, r) =
            (Matrix::new(a[0], m, n), Matrix::new(factors[0], m, p), Matrix::new(factors[1], p, n));
        if (0..p * n).any(|at| at / n > at % n && r.numbers[at] != 0.0) {
            return Err("R is not upper triangular".into());
        }
        orthonormal("QᵀQ - I", &q)?;
        // A column at a time: |a - Q·r| is a multiple of u·|a| for each (Higham, Accuracy and
        // Stability, theorem 19.4).
        let rest = a.minus(&q.times(&r));
        (0..n).try_for_each(|j| {
            small("A - Q·R", rest.column(j).norm(), a.column(j).norm(), roundings(m))
        })
    };
    let record = move |r: &mut Recorder, a: &[Tensor<f32>]| {
        let op = if full { qr(&a[0]).full() } else { qr(&a[0]) };
        op.forward(&mut r.encoder)
    };
    let reference =
        move |a: &[&[f32]]| reference::qr(a[0], m, n, full).map(|Qr { q, r }| vec![q, r]);
    let input = Input { rows: m, columns: n, matrices };
    case(
        format!("{name}, full {full}"),
        vec![input],
        fates,
        record,
        |factors: &Qr| vec![factors.q.clone(), factors.r.clone()],
        reference,
        judge,
    )
}
