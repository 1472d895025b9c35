//! Factorizations and solutions of small, well-conditioned matrices.

use super::{Case, case};
use crate::doctor::{compare::Bound, trial::Trial};
use anyhow::Result;
use bitnet_wgpu::{
    Tensor,
    linalg::{self, Outcome, Svd, Triangle},
    reference,
};
use pollster::block_on;

/// More than a block of 32 columns.
const N: usize = 37;
const ROWS: usize = 45;

/// Errors of a solution grow with the condition of its matrix, which is moderate here.
const SOLUTION: f64 = 1e-3;

pub const CASES: &[Case] = &[
    case("linalg::cholesky", cholesky),
    case("linalg::cholesky_backward", cholesky_backward),
    case("linalg::least_squares", least_squares),
    case("linalg::qr", qr),
    case("linalg::solve", solve),
    case("linalg::svd", svd),
    case("linalg::triangular_solve", triangular_solve),
];

/// Random numbers with a heavy diagonal.
fn dominant(t: &mut Trial, rows: usize) -> Vec<f32> {
    let mut a = t.floats(rows * N);
    (0..N).for_each(|i| a[i * N + i] += 20.0);
    a
}

/// B·Bᵀ of such numbers, in steps that leave it symmetric.
fn positive_definite(t: &mut Trial) -> Vec<f32> {
    let b = dominant(t, N);
    let product =
        |i: usize, j: usize| (0..N).map(|k| b[i * N + k] * b[j * N + k]).sum::<f32>() / 20.0;
    (0..N * N).map(|at| product((at / N).min(at % N), (at / N).max(at % N))).collect()
}

/// Expects these numbers of a result, and that the op reports no failure.
fn sound<T: Send + 'static>(
    t: &mut Trial,
    outcome: Outcome<T>,
    tensor: fn(T) -> Tensor<f32>,
    expected: &[f32],
) {
    let read = move || Ok(block_on(tensor(block_on(outcome.check())?).read())?);
    t.check(Bound::Within(SOLUTION), read, &expected.to_vec());
}

fn cholesky(t: &mut Trial) -> Result<()> {
    let a = positive_definite(t);
    let there = t.context.upload(&a, [N, N])?;
    let l = linalg::cholesky(&there).forward(&mut t.encoder)?;
    sound(t, l, |l| l, &reference::cholesky(&a, N)?);
    Ok(())
}

fn cholesky_backward(t: &mut Trial) -> Result<()> {
    let (a, dl) = (positive_definite(t), t.floats(N * N));
    let l = reference::cholesky(&a, N)?;
    let (l_there, dl_there) = (t.context.upload(&l, [N, N])?, t.context.upload(&dl, [N, N])?);
    let da = linalg::cholesky(&l_there).backward(&mut t.encoder, &l_there, &dl_there)?;
    t.near(&da, &reference::cholesky_backward(&l, &dl, N)?, SOLUTION);
    Ok(())
}

fn least_squares(t: &mut Trial) -> Result<()> {
    let (a, b) = (dominant(t, ROWS), t.floats(ROWS * 3));
    let x =
        linalg::least_squares(&t.context.upload(&a, [ROWS, N])?, &t.context.upload(&b, [ROWS, 3])?)
            .forward(&mut t.encoder)?;
    sound(t, x, |x| x, &reference::least_squares(&a, &b, ROWS, N)?);
    Ok(())
}

fn qr(t: &mut Trial) -> Result<()> {
    let a = dominant(t, ROWS);
    let there = t.context.upload(&a, [ROWS, N])?;
    let (for_q, for_r) =
        (linalg::qr(&there).forward(&mut t.encoder)?, linalg::qr(&there).forward(&mut t.encoder)?);
    let expected = reference::qr(&a, ROWS, N, false)?;
    sound(t, for_q, |factors| factors.q, &expected.q);
    sound(t, for_r, |factors| factors.r, &expected.r);
    Ok(())
}

fn solve(t: &mut Trial) -> Result<()> {
    let (a, b) = (dominant(t, N), t.floats(N * 3));
    let x = linalg::solve(&t.context.upload(&a, [N, N])?, &t.context.upload(&b, [N, 3])?)
        .forward(&mut t.encoder)?;
    sound(t, x, |x| x, &reference::solve(&a, &b, N)?);
    Ok(())
}

/// Singular vectors are unique up to their signs only, so only the values are compared with the
/// reference, and the product of all with the matrix.
fn svd(t: &mut Trial) -> Result<()> {
    let (m, n) = (33, 17);
    let a = t.floats(m * n);
    let there = t.context.upload(&a, [m, n])?;
    let factors = linalg::svd(&there).forward(&mut t.encoder)?;
    let values = reference::svd(&a, m, n)?.s;
    let read = move || {
        let Svd { u, s, vt } = block_on(factors.check())?;
        let (u, s, vt) = (block_on(u.read())?, block_on(s.read())?, block_on(vt.read())?);
        let product =
            |at: usize| (0..n).map(|k| u[at / n * n + k] * s[k] * vt[k * n + at % n]).sum();
        Ok((s.clone(), (0..m * n).map(product).collect::<Vec<f32>>()))
    };
    t.check(Bound::Within(SOLUTION), read, &(values, a));
    Ok(())
}

fn triangular_solve(t: &mut Trial) -> Result<()> {
    let (a, b, triangle) = (dominant(t, N), t.floats(N * 3), Triangle::LOWER);
    let (a_there, b_there) = (t.context.upload(&a, [N, N])?, t.context.upload(&b, [N, 3])?);
    let x = linalg::triangular_solve(&a_there, &b_there, triangle).forward(&mut t.encoder)?;
    sound(t, x, |x| x, &reference::triangular_solve(&a, &b, N, triangle)?);
    Ok(())
}
