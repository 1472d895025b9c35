//! `src/ops/linalg/gradients.rs`

use super::{Input, slices, small};
use crate::{Case, Data, Matrix, Recorder, floats, rng, roundings, seed};
use bitnet_wgpu::{
    Result, Tensor,
    linalg::{self as la, Qr, Svd, Triangle},
    reference,
};
use rand::{RngExt, rngs::SmallRng};

pub fn cases() -> Vec<Case> {
    // One, both sides of a block of 32, batches, and nothing.
    let mut shapes = vec![
        ([1, 1, 1], 1),
        ([6, 4, 2], 1),
        ([44, 37, 3], 1),
        ([9, 5, 1], 3),
        ([7, 7, 4], 4),
        ([3, 2, 0], 1),
        ([2, 0, 1], 1),
    ];
    let mut random = rng(1000 * seed());
    for _ in 0..2 {
        let n = random.random_range(1..30);
        shapes.push((
            [n + random.random_range(0..9), n, random.random_range(1..5)],
            random.random_range(1..4),
        ));
    }
    shapes.into_iter().flat_map(|(shape, count)| of(&mut random, shape, count)).collect()
}

/// All gradients for matrices `m × n`, or `n × n`, with this many right-hand sides.
fn of(rng: &mut SmallRng, [m, n, sides]: [usize; 3], count: usize) -> Vec<Case> {
    let name = |op: &str| format!("{op}: {count} of {m} × {n}, {sides} sides");
    let mut any = |rows: usize, columns: usize| {
        input(rows, columns, (0..count).map(|_| floats(rng, rows * columns, 2.0)).collect())
    };
    let (a, tall) = (near_two(any(n, n)), near_two(any(m, n)));
    let [x, dx, b] = [any(n, sides), any(n, sides), any(m, sides)];
    let triangles = [
        Triangle::LOWER,
        Triangle::LOWER.transposed(),
        Triangle::UPPER.unit_diagonal(),
        Triangle::UPPER.transposed(),
    ];
    let mut cases: Vec<Case> = triangles
        .into_iter()
        .map(|triangle| {
            case(
                name(&format!("{triangle:?}")),
                [&a, &x, &dx],
                move |r, t| {
                    both(la::triangular_solve(&t[0], &t[2], triangle).backward(
                        &mut r.encoder,
                        &t[1],
                        &t[2],
                    )?)
                },
                move |t| both(reference::triangular_solve_backward(t[0], t[1], t[2], n, triangle)?),
            )
        })
        .collect();
    cases.push(case(
        name("solve"),
        [&a, &x, &dx],
        |r, t| both(la::solve(&t[0], &t[2]).backward(&mut r.encoder, &t[1], &t[2])?),
        move |t| both(reference::solve_backward(t[0], t[1], t[2], n)?),
    ));
    cases.push(case(
        name("least squares"),
        [&tall, &b, &x, &dx],
        |r, t| both(la::least_squares(&t[0], &t[1]).backward(&mut r.encoder, &t[2], &t[3])?),
        move |t| both(reference::least_squares_backward(t[0], t[1], t[2], t[3], m, n)?),
    ));
    cases.push(case(
        name("cholesky"),
        [&a, &any(n, n)],
        |r, t| Ok(vec![la::cholesky(&t[0]).backward(&mut r.encoder, &t[0], &t[1])?]),
        move |t| Ok(vec![reference::cholesky_backward(t[0], t[1], n)?]),
    ));
    for (a, [m, n]) in [(&tall, [m, n]), (&near_two(any(n, m)), [n, m])] {
        let factors: Vec<_> = a
            .matrices
            .iter()
            .map(|a| reference::qr(a, m, n, false).expect("it is finite"))
            .collect();
        let k = m.min(n);
        let q = input(m, k, factors.iter().map(|factors| factors.q.clone()).collect());
        let r = input(k, n, factors.iter().map(|factors| factors.r.clone()).collect());
        cases.push(case(
            format!("qr: {count} of {m} × {n}"),
            [&q, &r, &any(m, k), &any(k, n)],
            |r, t| {
                let [q, r_of, dq, dr] = [0, 1, 2, 3].map(|i| t[i].clone());
                Ok(vec![la::qr(&t[0]).backward(
                    &mut r.encoder,
                    &Qr { q, r: r_of },
                    &Qr { q: dq, r: dr },
                )?])
            },
            move |t| {
                let [q, r, dq, dr] = [0, 1, 2, 3].map(|i| t[i].to_vec());
                Ok(vec![reference::qr_backward(&Qr { q, r }, &Qr { q: dq, r: dr }, m, n)?])
            },
        ));
    }
    for [m, n] in [[m, n], [n, m]] {
        let factors: Vec<_> = any(m, n)
            .matrices
            .iter()
            .map(|a| reference::svd(a, m, n).expect("it converges"))
            .collect();
        let k = m.min(n);
        let all = |of: fn(&Svd<Vec<f32>>) -> &Vec<f32>| {
            factors.iter().map(|factors| of(factors).clone()).collect()
        };
        let [u, s, vt] =
            [input(m, k, all(|f| &f.u)), input(1, k, all(|f| &f.s)), input(k, n, all(|f| &f.vt))];
        let [du, ds, dvt] = [any(m, k), any(1, k), any(k, n)];
        cases.push(case(
            format!("svd: {count} of {m} × {n}"),
            [&u, &s, &vt, &du, &ds, &dvt],
            |r, t| {
                let [u, vt, du, dvt] = [0, 2, 3, 5].map(|i| t[i].clone());
                let [s, ds] = [vectors(&t[1])?, vectors(&t[4])?];
                Ok(vec![la::svd(&t[0]).backward(
                    &mut r.encoder,
                    &Svd { u, s, vt },
                    &Svd { u: du, s: ds, vt: dvt },
                )?])
            },
            move |t| {
                let [u, s, vt, du, ds, dvt] = [0, 1, 2, 3, 4, 5].map(|i| t[i].to_vec());
                Ok(vec![reference::svd_backward(
                    &Svd { u, s, vt },
                    &Svd { u: du, s: ds, vt: dvt },
                    m,
                    n,
                )?])
            },
        ));
    }
    cases
}

fn input(rows: usize, columns: usize, matrices: Vec<Vec<f32>>) -> Input {
    Input { rows, columns, matrices }
}

/// Twice the identity and a random matrix whose norm is about 1.2: the condition is below 5, and so
/// is that of its triangles and of its factors.
fn near_two(mut input: Input) -> Input {
    let [rows, columns] = [input.rows, input.columns];
    for matrix in &mut input.matrices {
        matrix.iter_mut().for_each(|v| *v /= 2.0 * (rows as f32).sqrt());
        (0..rows.min(columns)).for_each(|i| matrix[i * columns + i] += 2.0);
    }
    input
}

/// Matrices of one row, without it.
fn vectors(rows: &Tensor<f32>) -> Result<Tensor<f32>> {
    match *rows.shape().dims() {
        [_, k] => rows.reshape([k]),
        [a, _, k] => rows.reshape([a, k]),
        [a, b, _, k] => rows.reshape([a, b, k]),
        ref dims => panic!("{dims:?} are no matrices"),
    }
}

fn both<T>((a, b): (T, T)) -> Result<Vec<T>> {
    Ok(vec![a, b])
}

/// Results of a batch against those of the CPU reference for each of its matrices.
fn case<const N: usize>(
    name: String,
    inputs: [&Input; N],
    record: impl Fn(&mut Recorder, &[Tensor<f32>]) -> Result<Vec<Tensor<f32>>> + Send + Sync + 'static,
    reference: impl Fn(&[&[f32]]) -> Result<Vec<Vec<f32>>>,
) -> Case {
    let rows = inputs[0].rows;
    let of_matrix =
        |i: usize| inputs.iter().map(|input| input.matrices[i].clone()).collect::<Vec<_>>();
    let expected: Vec<Vec<Vec<f32>>> = (0..inputs[0].matrices.len())
        .map(|i| reference(&slices(&of_matrix(i))).expect("it is sound"))
        .collect();
    let check = move |got: &[Data], _| {
        for (at, got) in got.iter().enumerate() {
            let got = got.to_f32();
            for (i, (expected, got)) in expected
                .iter()
                .zip(got.chunks(got.len().div_ceil(expected.len()).max(1)))
                .enumerate()
            {
                let [expected, got] =
                    [&expected[at], got].map(|numbers| Matrix::new(numbers, 1, numbers.len()));
                // Six products or solutions in a row, each with the square of the condition at
                // most; what svd has between its factors, whose quotients may be large, is small or
                // large in both alike.
                small(
                    "the error",
                    got.minus(&expected).norm(),
                    expected.norm(),
                    6.0 * 25.0 * roundings(rows),
                )
                .map_err(|wrong| format!("output {at}, matrix {i}: {wrong}"))?;
            }
        }
        Ok(())
    };
    let shapes = inputs.map(Input::shape);
    let flat = inputs.map(|input| input.matrices.concat());
    let record = move |r: &mut Recorder| {
        let inputs: Vec<_> = flat
            .iter()
            .zip(shapes)
            .map(|(numbers, shape)| r.upload(numbers, shape))
            .collect::<Result<_>>()?;
        record(r, &inputs)?.iter().for_each(|y| r.watch_all(y));
        Ok(())
    };
    Case::new(name, record, check)
}
