//! Factorizations and solvers.

use super::{
    super::golden::{Case, Out},
    Run,
};
use bitnet_wgpu::{
    Result, linalg as la,
    linalg::{Qr, Svd, Triangle},
    tensor,
};

fn triangular_solve(c: &mut Case, triangle: Triangle) -> Result<Vec<Out>> {
    let (a, b, dy) = (c.x(0), c.x(1), c.dy());
    let x = c.sound(|e| la::triangular_solve(&a, &b, triangle).forward(e))?;
    let (da, db) = la::triangular_solve(&a, &b, triangle).backward(&mut c.encoder, &x, &dy)?;
    Ok(vec![x.into(), da.into(), db.into()])
}

fn qr_backward(c: &mut Case) -> Result<Vec<Out>> {
    let [q, r, dq, dr] = [0, 1, 2, 3].map(|i| c.x(i));
    let (factors, gradients) = (Qr { q, r }, Qr { q: dq, r: dr });
    Ok(vec![la::qr(&factors.q).backward(&mut c.encoder, &factors, &gradients)?.into()])
}

fn svd_backward(c: &mut Case) -> Result<Vec<Out>> {
    let [u, s, vt, du, ds, dvt] = [0, 1, 2, 3, 4, 5].map(|i| c.x(i));
    let (factors, gradients) = (Svd { u, s, vt }, Svd { u: du, s: ds, vt: dvt });
    Ok(vec![la::svd(&factors.u).backward(&mut c.encoder, &factors, &gradients)?.into()])
}

/// By the names of the golden.
pub const CASES: &[(&str, Run)] = &[
    ("qr_full", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr(&a).full().forward(e))?.r;
        Ok(vec![tensor::abs(&r).forward(&mut c.encoder)?.into()])
    }),
    ("cholesky", |c| {
        let (a, dy) = (c.x(0), c.dy());
        let l = c.sound(|e| la::cholesky(&a).forward(e))?;
        let da = la::cholesky(&a).backward(&mut c.encoder, &l, &dy)?;
        Ok(vec![l.into(), da.into()])
    }),
    ("triangular_solve", |c| triangular_solve(c, Triangle::LOWER)),
    ("triangular_solve_transposed", |c| triangular_solve(c, Triangle::LOWER.transposed())),
    ("triangular_solve_unit", |c| triangular_solve(c, Triangle::UPPER.unit_diagonal())),
    ("solve", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy());
        let x = c.sound(|e| la::solve(&a, &b).forward(e))?;
        let (da, db) = la::solve(&a, &b).backward(&mut c.encoder, &x, &dy)?;
        Ok(vec![x.into(), da.into(), db.into()])
    }),
    ("svd", |c| {
        let a = c.x(0);
        Ok(vec![c.sound(|e| la::svd(&a).forward(e))?.s.into()])
    }),
    ("least_squares", |c| {
        let (a, b, dy) = (c.x(0), c.x(1), c.dy());
        let x = c.sound(|e| la::least_squares(&a, &b).forward(e))?;
        let (da, db) = la::least_squares(&a, &b).backward(&mut c.encoder, &x, &dy)?;
        Ok(vec![x.into(), da.into(), db.into()])
    }),
    ("qr_backward_tall", qr_backward),
    ("qr_backward_wide", qr_backward),
    ("svd_backward_tall", svd_backward),
    ("svd_backward_wide", svd_backward),
    ("svd_backward_square", svd_backward),
    // Signs of rows are a matter of taste.
    ("qr", |c| {
        let a = c.x(0);
        let r = c.sound(|e| la::qr(&a).forward(e))?.r;
        Ok(vec![tensor::abs(&r).forward(&mut c.encoder)?.into()])
    }),
];
