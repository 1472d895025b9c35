//! `src/ops/linalg/svd.rs`

use super::{Fate, Fate::*, Input, NOT_FINITE, case, orthonormal, small};
use crate::{Case, Matrix, Recorder, floats, hilbert, of_rank, rng, roundings, seed};
use bitnet_wgpu::{
    Tensor,
    linalg::{Svd, svd},
    reference,
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    // Without rows or columns, one, tall, wide, both sides of a block of 16 and of a pair of
    // blocks.
    let fixed = [
        (0, 3),
        (3, 0),
        (1, 1),
        (1, 5),
        (5, 1),
        (7, 4),
        (4, 7),
        (16, 16),
        (33, 17),
        (31, 40),
        (40, 33),
    ];
    let mut cases: Vec<_> =
        (0..).zip(fixed).map(|(i, shape)| sound(&mut rng(i), shape, 1)).collect();
    cases.extend([sound(&mut rng(20), (9, 5), 3), sound(&mut rng(21), (20, 3), 4)]);
    cases.extend([(150, 70), (50, 100)].map(|shape| sound(&mut rng(22), shape, 1).device_only()));
    cases.extend([odd(19, 17), odd(6, 9), odd(50, 40).device_only()]);
    cases.push(in_sweeps(
        "12 sweeps of 9 × 20".into(),
        [9, 20],
        vec![floats(&mut rng(24), 180, 2.0)],
        vec![Fine],
        Some(12),
    ));
    let mut random = rng(1000 * seed());
    for _ in 0..3 {
        let (shape, count) =
            ((random.random_range(1..40), random.random_range(1..40)), random.random_range(1..4));
        cases.push(sound(&mut random, shape, count));
    }
    cases
}

fn sound(rng: &mut SmallRng, (m, n): (usize, usize), count: usize) -> Case {
    let matrices = (0..count).map(|_| floats(rng, m * n, 2.0)).collect();
    of(format!("{count} of {m} × {n}"), [m, n], matrices, vec![Fine; count])
}

/// Zero, the identity, all ones, rank 2, ill-conditioned, columns of many magnitudes, the largest
/// and the smallest numbers; numbers that are not finite.
fn odd(m: usize, n: usize) -> Case {
    let mut rng = rng(23);
    let mut graded = floats(&mut rng, m * n, 1.0);
    graded
        .iter_mut()
        .enumerate()
        .for_each(|(at, v)| *v *= 10f32.powi((at % n) as i32 * 7 % 60 - 30));
    let scaled = |rng: &mut SmallRng, factor: f32| {
        floats(rng, m * n, 1.0).iter().map(|v| v * factor).collect::<Vec<_>>()
    };
    let (huge, tiny) = (scaled(&mut rng, 1e36), scaled(&mut rng, 1e-33));
    let (mut nan, mut infinite) = (scaled(&mut rng, 1.0), scaled(&mut rng, 1.0));
    (nan[m * n - 1], infinite[n / 2]) = (f32::NAN, f32::NEG_INFINITY);
    let identity = Matrix::from_fn(m, n, |i, j| f64::from(u8::from(i == j))).to_f32();
    let (ones, overflow, low) = (vec![1.0; m * n], vec![3e38; m * n], of_rank(&mut rng, 2, m, n));
    let matrices = vec![
        vec![0.0; m * n],
        identity,
        ones,
        low,
        hilbert(m, n),
        graded,
        huge,
        tiny,
        nan,
        infinite,
        overflow,
    ];
    let fates = [vec![Fine; 8], vec![NOT_FINITE; 3]].concat();
    of(format!("odd ones of {m} × {n}"), [m, n], matrices, fates)
}

fn of(name: String, shape: [usize; 2], matrices: Vec<Vec<f32>>, fates: Vec<Fate>) -> Case {
    in_sweeps(name, shape, matrices, fates, None)
}

/// In as many sweeps as the caller says, which are enough.
fn in_sweeps(
    name: String,
    [m, n]: [usize; 2],
    matrices: Vec<Vec<f32>>,
    fates: Vec<Fate>,
    sweeps: Option<usize>,
) -> Case {
    let k = m.min(n);
    let judge = move |a: &[&[f32]], factors: &[&[f32]]| {
        let (a, u, vt) =
            (Matrix::new(a[0], m, n), Matrix::new(factors[0], m, k), Matrix::new(factors[2], k, n));
        let s = factors[1];
        if s.iter().any(|v| *v < 0.0) || s.windows(2).any(|pair| pair[0] < pair[1]) {
            return Err(format!("{s:?} do not descend"));
        }
        orthonormal("UᵀU - I", &u)?;
        orthonormal("VᵀV - I", &vt.transposed())?;
        let scaled = Matrix::from_fn(m, k, |i, j| u.at(i, j) * f64::from(s[j]));
        // Each of some ten sweeps turns a column by rotations with all others, and each rotation
        // rounds: random roundings of ten times as many.
        small("A - U·Σ·Vᵀ", a.minus(&scaled.times(&vt)).norm(), a.norm(), roundings(10 * m.max(n)))
    };
    let reference =
        move |a: &[&[f32]]| reference::svd(a[0], m, n).map(|Svd { u, s, vt }| vec![u, s, vt]);
    let input = Input { rows: m, columns: n, matrices };
    let tensors = |factors: &Svd| vec![factors.u.clone(), factors.s.clone(), factors.vt.clone()];
    let record = move |r: &mut Recorder, a: &[Tensor<f32>]| match sweeps {
        Some(sweeps) => svd(&a[0]).sweeps(sweeps).forward(&mut r.encoder),
        None => svd(&a[0]).forward(&mut r.encoder),
    };
    case(name, vec![input], fates, record, tensors, reference, judge)
}
